"""Attempts that share cores: their counted time, their weights and the cores that they do not use."""
