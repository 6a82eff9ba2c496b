"""Commands for environments, their snapshots and their templates."""
