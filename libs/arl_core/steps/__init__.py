"""Training steps: how far trajectories are, which of them end last, and what follows from it."""
