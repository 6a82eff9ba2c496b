"""Adapters for trainers: small classes on top of the client. Most of them import no trainer."""
