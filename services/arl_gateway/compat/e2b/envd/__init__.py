"""The inside of a sandbox as the daemon envd serves it: processes, files and code."""
