"""E2B's protocol: its control plane, and the daemon envd, on persistent environments."""
