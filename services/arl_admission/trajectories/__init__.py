"""The end of trajectories and of training steps."""
