"""Models of environments, files and snapshots."""
