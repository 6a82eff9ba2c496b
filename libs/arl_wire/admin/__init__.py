"""Models of the admin endpoints."""
