"""Calls that submit an action and block until it settles."""
