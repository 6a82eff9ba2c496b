"""External APIs: list, get, reverse proxy."""
