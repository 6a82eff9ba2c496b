"""SandboxFusion's protocol: run code."""
