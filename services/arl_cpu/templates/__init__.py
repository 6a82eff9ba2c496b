"""Templates: file trees that environments start from, stored on the node as content-addressed layers."""
