"""Node pools, as their controllers publish them."""
