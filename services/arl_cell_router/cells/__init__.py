"""The cells: connections, health checks, and requests to several of them."""
