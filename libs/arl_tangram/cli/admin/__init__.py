"""Commands for operators: keys, queues, projects, nodes, capacity."""
