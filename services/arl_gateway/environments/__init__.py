"""Environments, files, archives and snapshots."""
