"""Administration of nodes, and the exchange of join tokens."""
