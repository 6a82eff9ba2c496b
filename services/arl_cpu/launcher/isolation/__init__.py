"""Isolation by namespaces, landlock, seccomp and resource limits."""
