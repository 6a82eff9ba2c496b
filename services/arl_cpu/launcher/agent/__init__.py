"""The process inside a sandbox that starts programs, in Python and in C."""
