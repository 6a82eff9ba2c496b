"""Resources of nodes and the fitting of demands to them."""
