"""Streams of live output."""
