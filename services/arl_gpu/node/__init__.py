"""The manager of a GPU node."""
