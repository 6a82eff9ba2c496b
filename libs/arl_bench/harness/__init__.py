"""Parts that benchmarks share: a system of their own, CPU time, reports."""
