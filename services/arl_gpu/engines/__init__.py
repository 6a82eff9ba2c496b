"""External engines: vLLM and SGLang."""
