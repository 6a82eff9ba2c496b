"""The manager of a CPU node."""
