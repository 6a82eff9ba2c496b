"""The network of environments: sockets inside, and the process outside that serves them."""
