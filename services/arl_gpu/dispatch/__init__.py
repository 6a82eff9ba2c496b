"""Dispatch of batches to devices and engines."""
