"""Network policies of environments."""
