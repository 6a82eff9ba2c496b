"""Benchmarks of sandboxes: execution, density, CPU allocation, resizing."""
