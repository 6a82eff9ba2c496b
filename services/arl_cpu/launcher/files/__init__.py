"""File operations in environments."""
