"""Explanations, forecasts and capacity plans."""
