"""File trees of persistent environments: listings and archives.

Each transfer is an action of its environment, of kind `environment.transfer`. It is durable, ordered with the other
actions and needs no cores. No file changes under a running action, and no action runs during a transfer. A direct call
to the node would need a second mechanism to pause actions. The row contains only the action. The operation and the
archive go to the node in a request that waits there until the action is granted. No row and no process contains the
whole archive.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.http.auth import Caller
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import node_audience
from arl_store.tx import Row
from arl_wire.actions.action import Action, DemandSpec, EnvironmentSelector, SubmitActionRequest
from arl_wire.environments.files import FileEntry, FileListResponse, UploadArchiveResponse
from arl_wire.errors import BadRequest, Conflict, FieldError, TangramError, TooLarge

__all__ = ["ArchiveService"]

TRANSFER_TIMEOUT_S = 600
"""Maximum seconds of a transfer after its action was granted."""
POLL_WAIT_S = 20.0
NODE_RESPONSE_TIMEOUT_S = 5.0
"""Seconds to wait for the node's response after the action has settled."""
MAX_LIST_BYTES = 16 << 20
MAX_CURSOR_LENGTH = 2 * 4096
"""Characters of a cursor: the hexadecimal form of the longest path."""


class ArchiveService:
    """Transfers of file trees. Times are in seconds."""

    def __init__(
        self,
        environments: EnvironmentService,
        actions: ActionService,
        peers: ServiceClient,
        *,
        max_bytes: int,
        timeout_s: int = TRANSFER_TIMEOUT_S,
    ) -> None:
        self._environments, self._actions, self._peers = environments, actions, peers
        self._max_bytes, self._timeout_s = max_bytes, timeout_s

    async def list(
        self,
        id: UUID,
        caller: Caller,
        *,
        path: str,
        recursive: bool,
        cursor: str | None,
        limit: int,
        trace: RequestTrace,
    ) -> FileListResponse:
        """List files, in order with the environment's actions."""
        asked = {"op": "list", "path": path, "recursive": recursive, "limit": limit, "after": _decode_cursor(cursor)}
        async with self.transfer(id, caller, trace, asked) as content:
            said = await _read_json(content)
        return FileListResponse(items=[FileEntry(**entry) for entry in said["entries"]], next_cursor=said["next"])

    async def pack(
        self, id: UUID, caller: Caller, *, path: str, trace: RequestTrace
    ) -> tuple[AsyncIterator[bytes], AsyncExitStack]:
        """Return the archive as a stream, and the stack to close after it was sent."""
        asked = {"op": "pack", "path": path, "max_bytes": self._max_bytes}
        async with AsyncExitStack() as held:
            content = await held.enter_async_context(self.transfer(id, caller, trace, asked))
            return content, held.pop_all()
        raise AssertionError("the exit stack must not suppress exceptions")

    async def unpack(
        self, id: UUID, caller: Caller, *, path: str, archive: AsyncIterator[bytes], trace: RequestTrace
    ) -> UploadArchiveResponse:
        """Unpack an archive completely. If a member cannot be written, raise with its name; earlier members remain."""
        async with self.transfer(id, caller, trace, {"op": "unpack", "path": path}, archive) as content:
            return UploadArchiveResponse(**await _read_json(content))

    @asynccontextmanager
    async def transfer(
        self,
        id: UUID,
        caller: Caller,
        trace: RequestTrace,
        operation: Mapping[str, Any],
        body: AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Submit a transfer and return the node's response as a stream. Raises `Conflict` if the transfer fails."""
        row = await self._environments.require_live(id, caller)
        submitted = await self.submit_transfer(row, caller, trace)
        async with self.open_transfer(row, submitted.id, caller, operation, body) as content:
            yield content

    async def submit_transfer(
        self,
        row: Row,
        caller: Caller,
        trace: RequestTrace,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AdmittedAction:
        """Submit the action of a transfer in the environment of `row`. `open_transfer` must follow if it is new."""
        action = SubmitActionRequest(
            kind="environment.transfer",
            task=row.task,
            trajectory=row.trajectory,
            environment=EnvironmentSelector(id=row.id, scope="trajectory"),
            demand=DemandSpec(memory_mib=row.memory_mib, disk_mib=row.disk_mib, pids=row.pids),
            labels=dict(labels or {}),
        )
        return await self._actions.admit(action, caller, trace=trace, key=key)

    @asynccontextmanager
    async def open_transfer(
        self,
        row: Row,
        action: UUID,
        caller: Caller,
        operation: Mapping[str, Any],
        body: AsyncIterator[bytes] | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send the operation of a submitted transfer and return the node's response as a stream."""
        about = {"tangram-transfer": json.dumps({**operation, "limit_s": self._timeout_s})}
        url = f"{row.node_url}/internal/transfers/{action}"
        try:
            async with AsyncExitStack() as held:
                stream = self._peers.stream(url, about, body, audience=node_audience(row.node, row.node_credential_id))
                opening = asyncio.create_task(held.enter_async_context(stream))
                await self._wait_until_open(opening, action, caller)
                yield await opening
        except BaseException:
            # If the transfer has not started, cancel it. If it has, its closed connection ends it.
            with suppress(TangramError):
                await asyncio.shield(self._actions.cancel(action, caller))
            raise

    async def _wait_until_open(self, opening: "asyncio.Task[Any]", action: UUID, caller: Caller) -> None:
        """Wait for the node's response. Raises Conflict if the action settled and the node does not respond."""
        try:
            while not opening.done():
                watching = asyncio.create_task(self._actions.get(action, caller, wait_s=POLL_WAIT_S))
                await asyncio.wait((opening, watching), return_when=asyncio.FIRST_COMPLETED)
                if not watching.done():
                    watching.cancel()
                elif (settled := watching.result()).settled_at is not None:
                    await asyncio.wait((opening,), timeout=NODE_RESPONSE_TIMEOUT_S)
                    if not opening.done():
                        raise _transfer_failed(settled)
        except BaseException:
            opening.cancel()
            await asyncio.wait((opening,))
            raise


def _transfer_failed(settled: Action) -> Conflict:
    return Conflict(
        f"environment {settled.environment}: the transfer ended as {settled.outcome} "
        f"({settled.message or settled.reason})"
    )


async def _read_json(content: AsyncIterator[bytes]) -> dict[str, Any]:
    found = bytearray()
    async for chunk in content:
        found += chunk
        if len(found) > MAX_LIST_BYTES:
            raise TooLarge("the list of names is too large for one response: ask for fewer entries with `limit`")
    said: dict[str, Any] = json.loads(found)
    return said


def _decode_cursor(cursor: str | None) -> str | None:
    try:
        return bytes.fromhex(cursor).decode(errors="surrogateescape") if cursor is not None else None
    except ValueError:
        message = "is not a cursor of this list: use next_cursor of the previous page"
        raise BadRequest(
            f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)]
        ) from None
