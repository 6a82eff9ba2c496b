"""Requests to cells and responses to clients."""
