"""Advisory locks that several services take, by name: for `pg_advisory_xact_lock` and its shared form."""

__all__ = ["DESIRED_STATE_LOCK"]

DESIRED_STATE_LOCK = "hashtext('tangram.wishes')"
"""Shared by every transaction of the leader; whoever closes a node or pauses a queue takes it alone, and so waits for
the last round that did not know of it."""
