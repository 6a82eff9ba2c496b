"""The local engine: each node is a process of this machine."""
