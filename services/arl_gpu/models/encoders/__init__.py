"""Encoders, tokenizers and their weights."""
