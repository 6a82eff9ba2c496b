"""Benchmarks of external API calls that share a quota."""
