"""Explanations, forecasts and stragglers."""
