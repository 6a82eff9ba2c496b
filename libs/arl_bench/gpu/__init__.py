"""Drivers of GPU benchmarks that run in a process of their own."""
