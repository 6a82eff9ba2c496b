"""Models of requests between services."""
