"""Benchmarks of reward services."""
