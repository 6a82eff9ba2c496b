"""Fixtures that every kind of test may ask for."""

from support.postgres import clone_database, database, databases

__all__ = ["clone_database", "database", "databases"]
