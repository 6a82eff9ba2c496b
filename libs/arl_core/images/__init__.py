"""Container images by name: references, and where and when nodes pull them."""
