"""SWE-ReX's runtime protocol, version 1.4.0, on kept environments and their sessions."""
