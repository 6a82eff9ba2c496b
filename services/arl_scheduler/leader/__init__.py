"""The leader: rounds, learning, failed nodes."""
