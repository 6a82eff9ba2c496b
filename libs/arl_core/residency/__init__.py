"""Residency of model weights: placement and eviction."""
