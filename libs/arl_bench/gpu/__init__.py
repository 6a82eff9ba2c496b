"""Drivers of GPU benchmarks that run in a separate process."""
