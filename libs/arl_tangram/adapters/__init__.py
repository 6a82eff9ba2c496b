"""Adapters for trainers and agent frameworks: small classes on top of the client, one module for each framework."""
