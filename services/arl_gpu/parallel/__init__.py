"""Tensor parallelism over several devices."""
