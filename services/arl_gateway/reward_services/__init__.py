"""Reward services and scores."""
