"""Sandboxes of E2B: persistent environments with an access token, metadata and a time at which they end."""

import asyncio
import json
import re
import secrets
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any
from uuid import UUID

from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.compat.e2b import sandbox_queries
from arl_gateway.compat.e2b.channels import SandboxChannels
from arl_gateway.compat.e2b.expiry import SandboxExpiry
from arl_gateway.environments.forks import ForkService
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.environments.snapshots import SnapshotService
from arl_gateway.http.auth import Caller
from arl_gateway.ports.connections import PortConnections
from arl_store.tx import PostgresStore, Row
from arl_wire.actions.action import HOST_TEMPLATE
from arl_wire.environments.environment import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.environments.forks import ForkEnvironmentRequest
from arl_wire.environments.network import NetworkSetting, UpdateEnvironmentRequest
from arl_wire.errors import Conflict, NotFound, TangramError, TemplateNotFound, Unavailable

__all__ = ["TASK", "SandboxPorts", "SandboxService", "parse_sandbox_id", "parse_snapshot_id"]

TASK = "e2b"
CREATE_WAIT_S = 50.0
"""Seconds to wait for a new sandbox. The clients give up after 60 seconds."""
MAX_IDLE_S = 30 * 86400
"""Seconds without use after which an environment ends although its sandbox has not."""
HOST_ALIASES = frozenset({"base", "code-interpreter-v1"})
"""Templates of E2B that mean the host template unless a template has this name."""
GUEST_PACKAGE = b"arl_gateway.compat.e2b.guest."
"""Package of the guest's modules. In a sandbox they are top-level modules in one directory."""
SNAPSHOT_ID = re.compile("[0-9a-f]{32}")
GUEST_FILES = (
    *("accounts.py", "code_requests.py", "daemon.py", "event_buffer.py", "executions.py", "file_operations.py"),
    *("kernel.py", "processes.py", "turn.py", "watches.py"),
)


@dataclass(frozen=True, slots=True)
class SandboxPorts:
    """The connections to ports of sandboxes, and the operator's settings of them."""

    connections: PortConnections
    domain: str | None
    """Domain of the names of ports, if there is one."""
    are_public: bool
    """False if the token of a sandbox is needed for all its ports."""


class SandboxService:
    """The operations on sandboxes."""

    def __init__(
        self,
        store: PostgresStore,
        environments: EnvironmentService,
        actions: ActionService,
        snapshots: SnapshotService,
        forks: ForkService,
        channels: SandboxChannels,
        ports: SandboxPorts,
    ) -> None:
        self._store, self._environments, self._actions = store, environments, actions
        self._snapshots, self._forks, self.channels, self.ports = snapshots, forks, channels, ports
        self.expiry = SandboxExpiry(self._expiries, self._end_expired)
        guest = resources.files("arl_gateway.compat.e2b.guest")
        sources = {name: guest.joinpath(name).read_bytes().replace(GUEST_PACKAGE, b"") for name in GUEST_FILES}
        self._guest = {f".e2b/{name}": b64encode(source) for name, source in sources.items()}

    async def create(
        self,
        caller: Caller,
        *,
        template: str,
        timeout_s: int,
        metadata: Mapping[str, str],
        variables: Mapping[str, str],
        network: NetworkSetting | None,
        has_public_ports: bool,
        key: str | None,
    ) -> Row:
        """Create a sandbox and wait for it. A repeated `key` returns the same sandbox. Raises TangramError.

        Without `network`, it has the network of its snapshot, or the widest one.
        """
        try:
            made = await self._create_environment(caller, template, network, key)
        except TemplateNotFound:
            if template not in HOST_ALIASES:
                raise
            made = await self._create_environment(caller, HOST_TEMPLATE, network, key)
        try:
            await self._add_sandbox(
                made.id,
                caller,
                template=template,
                timeout_s=timeout_s,
                metadata=json.dumps(dict(metadata)),
                variables=json.dumps(dict(variables)),
                has_public_ports=has_public_ports,
            )
        except BaseException:
            if key is None:  # with a key, a repetition completes it
                await asyncio.shield(self._end(made.id, caller))
            raise
        return await self.get(made.id.hex, caller)

    async def _add_sandbox(
        self,
        id: UUID,
        caller: Caller,
        *,
        template: str,
        timeout_s: int,
        metadata: str,
        variables: str,
        has_public_ports: bool,
    ) -> None:
        values = {
            "id": id,
            "project_id": caller.project_id,
            "key_id": caller.key_id,
            "template": template,
            "metadata": metadata,
            "variables": variables,
            "access_token": secrets.token_hex(20),
            "has_public_ports": has_public_ports,
            "timeout_s": timeout_s,
        }
        async with self._store.write() as tx:
            await sandbox_queries.insert_sandbox(tx, values)
        self.expiry.schedule(id, timeout_s)

    async def _create_environment(
        self, caller: Caller, template: str, network: NetworkSetting | None, key: str | None
    ) -> EnvironmentInfo:
        common: dict[str, Any] = {"task": TASK, "idle_ttl_s": MAX_IDLE_S, "labels": {"e2b.template": template}}
        common |= {"network": network} if network is not None else {}
        if (snapshot := parse_snapshot_id(template)) is not None:
            body = CreateEnvironmentRequest(snapshot=snapshot, **common)
        else:
            body = CreateEnvironmentRequest(
                **{"template": template, "files": self._guest, "network": self.widest_network, **common}
            )
        made = await self._environments.create(
            body, caller, key=key and f"e2b:{template}:{key}", trace=RequestTrace(), wait_s=CREATE_WAIT_S
        )
        if isinstance(made, EnvironmentInfo):
            return made
        with suppress(TangramError):
            await self._actions.cancel(made.id, caller)
        raise Unavailable(f"no node could create the sandbox within {CREATE_WAIT_S:.0f} s; try again", retry_after_s=5)

    async def get(self, sandbox_id: str, caller: Caller) -> Row:
        """Return a sandbox of the caller's project. Raises NotFound."""
        async with self._store.read() as tx:
            row = await sandbox_queries.sandbox_by_id(tx, parse_sandbox_id(sandbox_id), project_id=caller.project_id)
        if row is None:
            raise NotFound(f"sandbox {sandbox_id} does not exist in this project")
        return row

    async def list(
        self, caller: Caller, *, metadata: Mapping[str, str], is_paused: bool | None, template: str | None
    ) -> Sequence[Row]:
        """Return the project's sandboxes, oldest first."""
        async with self._store.read() as tx:
            return await sandbox_queries.list_sandboxes(
                tx,
                project_id=caller.project_id,
                metadata=json.dumps(dict(metadata)),
                is_paused=is_paused,
                template=template,
            )

    async def set_timeout(self, sandbox_id: str, caller: Caller, timeout_s: int, *, may_shorten: bool) -> Row:
        """Set the end of a sandbox from now on. A paused sandbox runs again. Raises NotFound."""
        before = await self.get(sandbox_id, caller)
        async with self._store.write() as tx:
            await sandbox_queries.set_timeout(tx, before.id, timeout_s, may_shorten=may_shorten)
        self.expiry.schedule(before.id, timeout_s)
        if before.paused_at is not None:
            channel = self.channels.channel(before)
            channel.resume()
            # Processes that ran before the pause run again in the action of this request.
            await channel.call("processes", {})
        return before

    @property
    def widest_network(self) -> NetworkSetting:
        """The network of sandboxes without rules: all of the Internet if the operator allows that, else none."""
        return self._environments.networks.widest()

    async def set_network(self, sandbox_id: str, caller: Caller, network: NetworkSetting) -> None:
        """Replace the network of a sandbox, also for its running commands. Raises NotFound, Conflict."""
        row = await self.get(sandbox_id, caller)
        await self._environments.update(row.id, UpdateEnvironmentRequest(network=network), caller)

    async def pause(self, sandbox_id: str, caller: Caller) -> bool:
        """Pause a sandbox: no process runs, and it does not end. Return False if it was paused. Raises NotFound."""
        row = await self.get(sandbox_id, caller)
        async with self._store.write() as tx:
            is_paused = await sandbox_queries.set_paused(tx, row.id)
        if is_paused:
            await self.channels.channel(row).pause()
            await self.ports.connections.end(row.id, Conflict(f"sandbox {sandbox_id} is paused"))
        return is_paused

    async def snapshot(self, sandbox_id: str, caller: Caller) -> UUID:
        """Store the files of a sandbox. Its processes rest meanwhile. Raises NotFound."""
        row = await self.get(sandbox_id, caller)
        async with self.channels.channel(row).suspended():
            return (await self._snapshots.create(row.id, caller, trace=RequestTrace())).id

    async def fork(self, sandbox_id: str, caller: Caller, *, count: int, timeout_s: int) -> Sequence[Row]:
        """Create sandboxes with the files, metadata and variables of this one, or none. Raises TangramError."""
        row = await self.get(sandbox_id, caller)
        body = ForkEnvironmentRequest(count=count, idle_ttl_s=MAX_IDLE_S, labels={"e2b.template": row.template})
        async with self.channels.channel(row).suspended():
            forks = await self._forks.fork(row.id, body, caller, key=None, trace=RequestTrace(), wait_s=CREATE_WAIT_S)
        ids = [each.id for each in forks.items]
        try:
            for id in ids:
                await self._add_sandbox(
                    id,
                    caller,
                    template=row.template,
                    timeout_s=timeout_s,
                    metadata=row.metadata,
                    variables=row.variables,
                    has_public_ports=row.has_public_ports,
                )
        except BaseException:
            await asyncio.shield(asyncio.gather(*(self._end(id, caller) for id in ids), return_exceptions=True))
            raise
        return [await self.get(id.hex, caller) for id in ids]

    async def kill(self, sandbox_id: str, caller: Caller) -> None:
        """End a sandbox. Raises NotFound."""
        row = await self.get(sandbox_id, caller)
        await self._end(row.id, caller)

    async def _end(self, id: UUID, caller: Caller) -> None:
        with suppress(NotFound):
            await self._environments.end(id, caller)
        async with self._store.write() as tx:
            await sandbox_queries.delete_sandbox(tx, id)
        self.channels.end(id)

    async def _end_expired(self, row: Row) -> None:
        await self._end(row.id, Caller(row.key_id, row.project_id, row.project, frozenset({"actions:write"})))

    async def _expiries(self, id: UUID | None) -> Sequence[Row]:
        async with self._store.read() as tx:
            return await sandbox_queries.list_expiries(tx, id)

    async def stop(self) -> None:
        """Stop timers and channels."""
        await asyncio.gather(self.expiry.stop(), self.channels.stop())


def parse_snapshot_id(template: str) -> UUID | None:
    """Return the id if the name of a template is the id of a snapshot, else None."""
    return UUID(hex=template) if SNAPSHOT_ID.fullmatch(template) else None


def parse_sandbox_id(sandbox_id: str) -> UUID:
    """Return the id of the environment. Raises NotFound."""
    try:
        return UUID(hex=sandbox_id)
    except ValueError:
        raise NotFound(f"sandbox {sandbox_id[:64]} does not exist in this project") from None
