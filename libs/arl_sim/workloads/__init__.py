"""Workloads of the simulator."""
