"""Models of actions, batches, output, traces and explanations."""
