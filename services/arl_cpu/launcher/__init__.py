"""The launcher: the one process of a CPU node that makes, runs and ends sandboxes. Standard library only."""
