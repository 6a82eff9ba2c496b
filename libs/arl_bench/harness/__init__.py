"""Parts that benchmarks share: separate systems, CPU time, reports."""
