"""The SQL statements of a node's images. Every update is guarded by this node's epoch."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text

from arl_store.tx import ReadTx, Row, WriteTx
from arl_store.values import storable

__all__ = [
    "IMAGE_REQUESTS",
    "PulledImage",
    "begin_pull",
    "list_images",
    "record_failure",
    "record_progress",
    "record_ready",
    "record_resolved",
    "remove_images",
    "set_layers",
]

_OWN = "node_id = :node_id and exists (select from nodes where id = :node_id and epoch = :epoch)"

IMAGE_REQUESTS = """
    select coalesce(json_agg(i), '[]')::text
      from (select name, remove_requested_at is not null as remove
              from node_images
             where node_id = :node_id
               and (state in ('wanted', 'pulling') or remove_requested_at is not null)
             order by changed_at, name) as i
"""
"""Images to pull or to remove, for the poll of the node. An earlier process may have begun a pull."""

LIST_IMAGES = text("select name, state from node_images where node_id = :node_id")

BEGIN_PULL = text(f"""
    update node_images
       set state = 'pulling', bytes = null, bytes_done = 0, reason = null, message = null, changed_at = now()
     where {_OWN} and name = :name and state in ('wanted', 'pulling')
""")  # noqa: S608 - a constant of this module

RECORD_RESOLVED = text(f"""
    update node_images
       set digest = :digest, bytes = :bytes, bytes_done = :bytes_done, layers = cast(:layers as jsonb)
     where {_OWN} and name = :name and state = 'pulling'
""")  # noqa: S608 - a constant of this module

RECORD_PROGRESS = text(f"""
    update node_images set bytes_done = :bytes_done, message = :message
     where {_OWN} and name = :name and state = 'pulling'
""")  # noqa: S608 - a constant of this module

RECORD_FAILURE = text(f"""
    update node_images
       set state = 'failed', reason = :reason, message = :message, changed_at = now()
     where {_OWN} and name = :name and state = 'pulling'
""")  # noqa: S608 - a constant of this module

RECORD_READY = text("""
    insert into node_images (node_id, name, state, digest, bytes, bytes_done, unpacked_bytes, layers, pull_s, used_at)
    select :node_id, :name, 'ready', :digest, :bytes, :bytes, :unpacked_bytes, cast(:layers as jsonb), :pull_s,
           to_timestamp(:used_at)
      from nodes
     where id = :node_id and epoch = :epoch
        on conflict (node_id, name) do update
       set state = 'ready', digest = excluded.digest, bytes = excluded.bytes, bytes_done = excluded.bytes,
           unpacked_bytes = excluded.unpacked_bytes, layers = excluded.layers, reason = null, message = null,
           pull_s = coalesce(excluded.pull_s, node_images.pull_s), used_at = excluded.used_at, changed_at = now()
""")

REMOVE_IMAGES = text(f"""
    delete from node_images where {_OWN} and name = any(cast(:names as text[])) and state <> 'pulling'
""")  # noqa: S608 - a constant of this module

DROP_LAYERS = text(f"""
    delete from node_layers where {_OWN} and digest <> all(cast(:digests as text[]))
""")  # noqa: S608 - a constant of this module

ADD_LAYERS = text("""
    insert into node_layers (node_id, digest)
    select :node_id, digest
      from unnest(cast(:digests as text[])) as l (digest)
     where exists (select from nodes where id = :node_id and epoch = :epoch)
        on conflict do nothing
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    """An image that the store has."""

    name: str
    digest: str
    bytes: int
    unpacked_bytes: int
    layers: Mapping[str, int]
    used_at: float
    pull_s: float | None = None
    """Seconds of the pull; None if an earlier process pulled it."""


async def list_images(tx: ReadTx, *, node_id: int) -> Sequence[Row]:
    """Return name and state of the node's images."""
    return await tx.fetch(LIST_IMAGES, {"node_id": node_id})


async def begin_pull(tx: WriteTx, name: str, *, node_id: int, epoch: UUID) -> bool:
    """Set a requested image to pulling. Return False if the request is gone."""
    return await tx.execute(BEGIN_PULL, {"name": name, "node_id": node_id, "epoch": epoch}) == 1


async def record_resolved(
    tx: WriteTx, name: str, *, digest: str, layers: Mapping[str, int], bytes_done: int, node_id: int, epoch: UUID
) -> None:
    """Record the size and the layers of an image that is being pulled."""
    values = {"digest": digest, "bytes": sum(layers.values()), "bytes_done": bytes_done, "layers": _dumps(layers)}
    await tx.execute(RECORD_RESOLVED, {"name": name, **values, "node_id": node_id, "epoch": epoch})


async def record_progress(
    tx: WriteTx, name: str, *, bytes_done: int, message: str | None, node_id: int, epoch: UUID
) -> None:
    """Record the bytes that are here, and why the pull waits."""
    values = {"bytes_done": bytes_done, "message": storable(message) if message is not None else None}
    await tx.execute(RECORD_PROGRESS, {"name": name, **values, "node_id": node_id, "epoch": epoch})


async def record_failure(tx: WriteTx, name: str, *, reason: str, message: str, node_id: int, epoch: UUID) -> None:
    """Record that a pull failed."""
    values = {"reason": reason, "message": storable(message)}
    await tx.execute(RECORD_FAILURE, {"name": name, **values, "node_id": node_id, "epoch": epoch})


async def record_ready(tx: WriteTx, image: PulledImage, *, node_id: int, epoch: UUID) -> None:
    """Record that environments can start from an image."""
    values = {
        "name": image.name,
        "digest": image.digest,
        "bytes": image.bytes,
        "unpacked_bytes": image.unpacked_bytes,
        "layers": _dumps(image.layers),
        "pull_s": image.pull_s,
        "used_at": image.used_at,
    }
    await tx.execute(RECORD_READY, {**values, "node_id": node_id, "epoch": epoch})


async def remove_images(tx: WriteTx, names: Collection[str], *, node_id: int, epoch: UUID) -> int:
    """Delete the rows of images, so that no action is granted for them. Return the number of deleted rows."""
    return await tx.execute(REMOVE_IMAGES, {"names": sorted(names), "node_id": node_id, "epoch": epoch})


async def set_layers(tx: WriteTx, digests: Collection[str], *, node_id: int, epoch: UUID) -> None:
    """Replace the layers that the node reports."""
    values = {"digests": sorted(digests), "node_id": node_id, "epoch": epoch}
    await tx.execute(DROP_LAYERS, values)
    await tx.execute(ADD_LAYERS, values)


def _dumps(layers: Mapping[str, int]) -> str:
    return json.dumps(dict(layers))
