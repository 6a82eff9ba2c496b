"""Statements of the scheduler."""
