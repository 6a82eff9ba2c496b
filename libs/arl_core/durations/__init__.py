"""Estimates of run times and the speed-up of elastic actions."""
