"""Verifiers: rewards computed by a program in the sandbox."""
