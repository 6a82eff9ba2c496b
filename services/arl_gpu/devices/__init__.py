"""Devices: memory, copies and weights in host memory."""
