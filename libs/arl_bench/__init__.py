"""Benchmarks as commands. Each prints one JSON document: machine, load, versions, repeats, samples, figures."""
