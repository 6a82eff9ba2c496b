"""Models of reward services, scores and judges."""
