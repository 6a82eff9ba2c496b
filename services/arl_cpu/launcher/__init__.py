"""The launcher: the process of a CPU node that creates, runs and ends sandboxes. Standard library only."""
