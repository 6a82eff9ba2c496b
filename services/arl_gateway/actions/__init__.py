"""Actions: submit, get, list, cancel, wait, explain, trace."""
