"""`tangram bench step`: the length of a training step and of its actions under several policies, on real cores."""
