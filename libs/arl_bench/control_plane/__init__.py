"""Benchmarks of the control plane: overhead, tracing, rounds, recovery, soak."""
