"""Handlers of requests that concern several cells."""
