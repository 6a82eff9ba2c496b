"""Values of the domain: actions, demands, grants, states."""
