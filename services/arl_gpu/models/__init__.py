"""Models that score items."""
