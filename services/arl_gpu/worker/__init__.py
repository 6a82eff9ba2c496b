"""The worker process of a device and its client."""
