"""OpenAI's protocol: chat completions, completions, embeddings, models."""
