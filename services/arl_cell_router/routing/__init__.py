"""The cell of a request. Pure: no clock, no network."""
