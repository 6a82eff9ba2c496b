"""Why something cannot be a template."""

__all__ = ["Refused"]


class Refused(Exception):
    """The message says what is wrong and what to do."""
