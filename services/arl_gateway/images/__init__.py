"""Images on nodes: list, pull and remove."""
