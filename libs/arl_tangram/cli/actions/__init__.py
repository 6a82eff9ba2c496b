"""Commands that run and inspect actions."""
