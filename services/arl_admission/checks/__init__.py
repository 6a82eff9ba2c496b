"""Checks of a submission: fleet, environment, reward service."""
