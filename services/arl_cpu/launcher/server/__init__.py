"""The server of the launcher: connections and requests."""
