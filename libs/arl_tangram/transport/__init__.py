"""Connections, HTTP channels, shared waiting and trace context of the SDK."""
