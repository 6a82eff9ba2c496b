"""Sandboxes, attempts, sessions and their output."""
