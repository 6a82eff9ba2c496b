"""Why something cannot be a template."""

__all__ = ["TemplateError"]


class TemplateError(Exception):
    """The message says what is wrong and what to do."""
