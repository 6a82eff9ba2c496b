"""A node's name is one node's at a time."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from arl_node import repository
from arl_store.tx import PostgresStore

__all__ = ["wait_until_name_is_free"]

log = logging.getLogger(__name__)


async def wait_until_name_is_free(
    store: PostgresStore, node: Mapping[str, Any], *, ttl_s: float, check_interval_s: float
) -> None:
    """Return when no lease of another node counts under this one's name; raises NameTaken where that node beats on.

    The same address or the same epoch is the same node, which was started again.
    """
    seen: datetime | None = None
    while True:
        async with store.read() as tx:
            holder = await repository.other_name_holder(tx, node, ttl_s=ttl_s)
        if holder is None:
            return
        if seen is None:
            seen = holder.last_beat
            log.warning("%s had the name %s a moment ago; waiting for it to be free", holder.url, node["name"])
        elif holder.last_beat > seen:
            taken = repository.NodeNameTaken(node["name"], holder.url)
            log.critical("%s", taken)
            raise taken
        await asyncio.sleep(check_interval_s)
