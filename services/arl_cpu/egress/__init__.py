"""The network of environments: the process outside that serves their sockets, and its interface to the node."""
