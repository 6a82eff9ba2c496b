"""Ports of environments: requests to servers inside them, by path and by host name."""
