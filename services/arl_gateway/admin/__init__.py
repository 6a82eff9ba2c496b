"""Admin endpoints: keys, projects, queues, nodes, capacity, consistency."""
