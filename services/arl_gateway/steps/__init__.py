"""Training steps: their progress, and their end."""
