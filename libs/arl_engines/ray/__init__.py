"""The Ray engine: each node is kept by an actor on a Ray node."""
