"""Answers to questions: explanations, forecasts, capacity plans."""
