"""The HTTP server of a service: limits of connections, request bodies and JSON documents."""
