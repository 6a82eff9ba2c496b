"""Templates: file trees that environments begin with, kept on the node as content-addressed layers."""
