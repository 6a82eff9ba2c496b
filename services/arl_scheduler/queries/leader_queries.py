"""Statements of leadership. Every write of a leader starts with its term."""

from uuid import UUID

from sqlalchemy import text

from arl_store.guards import DESIRED_STATE_LOCK
from arl_store.tx import WriteTx

__all__ = ["TermLostError", "acquire_term", "ensure_cell", "lock_term", "renew_lease", "resign"]


class TermLostError(Exception):
    """Another scheduler leads; nothing of this transaction was written."""


ENSURE_CELL = text("""
    with term as (
        insert into leader_term (cell, term) values (:cell, 0) on conflict do nothing
    )
    insert into leader_lease (cell, term, expires_at) values (:cell, 0, '-infinity') on conflict do nothing
""")

ACQUIRE_TERM = text("""
    with free as (
        select cell from leader_lease where cell = :cell and expires_at < now() for update
    ), taken as (
        update leader_term set term = term + 1, holder = :holder from free where leader_term.cell = free.cell
     returning leader_term.cell, term
    )
    update leader_lease
       set term = taken.term, expires_at = now() + make_interval(secs => :ttl_s)
      from taken
     where leader_lease.cell = taken.cell
 returning leader_lease.term
""")

RENEW_LEASE = text("""
    update leader_lease set expires_at = now() + make_interval(secs => :ttl_s) where cell = :cell and term = :term
""")

RESIGN = text("update leader_lease set expires_at = '-infinity' where cell = :cell and term = :term")

# A take-over updates this row, so it waits for the last transaction of the old leader.
LOCK_TERM = text(f"""
    select pg_advisory_xact_lock_shared({DESIRED_STATE_LOCK})
    from leader_term where cell = :cell and term = :term for share
""")  # noqa: S608 - a constant


async def ensure_cell(tx: WriteTx, *, cell: str) -> None:
    """Create the rows of a cell if they are missing."""
    await tx.execute(ENSURE_CELL, {"cell": cell})


async def acquire_term(tx: WriteTx, *, cell: str, holder: UUID, ttl_s: float) -> int | None:
    """Take the lease if it has expired. Return the new term, or None if another scheduler has the lease."""
    row = await tx.first(ACQUIRE_TERM, {"cell": cell, "holder": holder, "ttl_s": ttl_s})
    return None if row is None else int(row.term)


async def renew_lease(tx: WriteTx, *, cell: str, term: int, ttl_s: float) -> bool:
    """Extend the lease. Return False if the term is no longer current."""
    return await tx.execute(RENEW_LEASE, {"cell": cell, "term": term, "ttl_s": ttl_s}) == 1


async def resign(tx: WriteTx, *, cell: str, term: int) -> None:
    """Let the lease of this term expire at once."""
    await tx.execute(RESIGN, {"cell": cell, "term": term})


async def lock_term(tx: WriteTx, *, cell: str, term: int) -> None:
    """Lock the term; the first statement of every leader transaction. Raises TermLostError.

    Until the commit no other scheduler can take over.
    """
    if await tx.first(LOCK_TERM, {"cell": cell, "term": term}) is None:
        raise TermLostError
