"""SWE-ReX's runtime protocol, version 1.4.0, on persistent environments and their sessions."""
