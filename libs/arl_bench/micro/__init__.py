"""Drivers that measure one component without the rest of the system."""
