"""Commands that start, stop and check the system on this machine."""
