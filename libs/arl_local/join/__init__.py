"""How another machine joins the system: tokens, credentials, and the processes of a joined node."""
