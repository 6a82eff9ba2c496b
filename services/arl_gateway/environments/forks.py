"""Forks of environments: one snapshot of the source, then one new environment from it for each fork.

A request with an `Idempotency-Key` derives the keys of its actions from it, so a repetition finds the same snapshot and
the same forks. A repetition after a failed attempt makes another attempt with other keys.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from uuid import UUID

from arl_core.domain.states import ActionOutcome
from arl_gateway.actions import queries
from arl_gateway.actions.service import ActionService, AdmittedAction, RequestTrace, check_idempotency_key
from arl_gateway.environments.archives import TRANSFER_TIMEOUT_S, ArchiveService
from arl_gateway.environments.fork_queries import fork_source
from arl_gateway.environments.network_policies import network_from_row
from arl_gateway.environments.service import (
    EnvironmentService,
    creation_error,
    environment_from_row,
    not_live_error,
    trajectory_name,
)
from arl_gateway.environments.snapshots import TAKE_SNAPSHOT, SnapshotService
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore, Row
from arl_wire.actions.action import Action, DemandSpec, EnvironmentSelector, SubmitActionRequest
from arl_wire.environments.environment import EnvironmentInfo, EnvironmentState
from arl_wire.environments.forks import ForkEnvironmentRequest, ForkEnvironmentResponse
from arl_wire.errors import Conflict, FieldError, NotFound, TangramError, Unavailable
from arl_wire.internal.admission import SnapshotSource

__all__ = ["ForkService", "attempt_keys"]

MAX_ATTEMPTS = 16
"""Attempts of one `Idempotency-Key`. Each repetition after a failed attempt makes one."""
UNDO_WAIT_S = 10.0
"""Seconds that a cancelled creation gets to settle before its trajectory is ended."""
LABEL = "fork-request"
"""Label of the action that saves the files: a hash of the request, so that a key belongs to one body."""


class ForkService:
    """The operation on forks."""

    def __init__(
        self,
        store: PostgresStore,
        actions: ActionService,
        environments: EnvironmentService,
        archives: ArchiveService,
        snapshots: SnapshotService,
        *,
        cell: int = 0,
    ) -> None:
        self._store, self._actions, self._cell = store, actions, cell
        self._environments, self._archives, self._snapshots = environments, archives, snapshots

    async def fork(
        self,
        id: UUID,
        body: ForkEnvironmentRequest,
        caller: Caller,
        *,
        key: str | None,
        trace: RequestTrace,
        wait_s: float,
    ) -> ForkEnvironmentResponse:
        """Create all forks and return them. If one cannot be created within `wait_s`, none remains.

        Raises:
            NotFound: The environment is unknown.
            Conflict: The environment is not alive, or a name of a trajectory is in use.
            Unavailable: The node has no room for all forks, or failed.
        """
        key = check_idempotency_key(key)
        source = await self._fetch_source(id, caller)
        for attempt in range(MAX_ATTEMPTS):
            keys = attempt_keys(key, attempt, body.count)
            if source.state != EnvironmentState.LIVE and not await self._is_known(keys[0], caller):
                raise not_live_error(source)
            saving = await self._archives.submit_transfer(
                source, caller, trace, key=keys[0], labels={LABEL: _body_hash(body)}
            )
            try:
                return await self._attempt(source, body, saving, caller, keys=keys[1:], trace=trace, wait_s=wait_s)
            except Unavailable:
                if saving.created:
                    raise
        raise Unavailable(
            f"the forks of environment {id} were not created in {MAX_ATTEMPTS} attempts with this Idempotency-Key: use"
            " another key",
            retry_after_s=5,
        )

    async def _attempt(
        self,
        source: Row,
        body: ForkEnvironmentRequest,
        saving: AdmittedAction,
        caller: Caller,
        *,
        keys: Sequence[str | None],
        trace: RequestTrace,
        wait_s: float,
    ) -> ForkEnvironmentResponse:
        """Save the files unless an earlier request did, create the forks, and delete the snapshot."""
        await self._save(source, saving, caller)
        try:
            left = (await self._fetch_source(source.id, caller)).leftover_processes
            items = await self._create_all(source, body, saving.id, caller, keys=keys, trace=trace, wait_s=wait_s)
        finally:
            # An error here would leave the forks to nobody. A snapshot that remains is in the list of the project.
            with suppress(TangramError):
                await asyncio.shield(self._snapshots.delete(saving.id, caller))
        return ForkEnvironmentResponse(source=source.id, items=items, leftover_processes=left)

    async def _save(self, source: Row, saving: AdmittedAction, caller: Caller) -> None:
        """Save the files of the source, in order with its actions. The snapshot has the id of the action."""
        if saving.created:
            async with self._archives.open_transfer(source, saving.id, caller, TAKE_SNAPSHOT) as content:
                async for _ in content:
                    pass
            return
        earlier = await self._actions.get(saving.id, caller, wait_s=TRANSFER_TIMEOUT_S)
        if earlier.outcome is not ActionOutcome.OK:
            raise Unavailable(
                f"environment {source.id}: an earlier request with this Idempotency-Key could not save the files"
                f" ({earlier.message or earlier.reason or earlier.outcome or earlier.state}); try again",
                retry_after_s=5,
            )

    async def _create_all(
        self,
        source: Row,
        body: ForkEnvironmentRequest,
        snapshot: UUID,
        caller: Caller,
        *,
        keys: Sequence[str | None],
        trace: RequestTrace,
        wait_s: float,
    ) -> list[EnvironmentInfo]:
        origin = SnapshotSource(snapshot=snapshot, node=source.node_id)
        requests = _creations(source, body, keys, self._cell)
        admitting = (
            self._actions.admit(request, caller, trace=trace, key=key, source_snapshot=origin)
            for request, key in zip(requests, keys, strict=True)
        )
        answers = await asyncio.gather(*admitting, return_exceptions=True)
        ids = [answer.id for answer in answers if isinstance(answer, AdmittedAction)]
        try:
            for index, answer in enumerate(answers):
                if isinstance(answer, BaseException):
                    raise _with_field(answer, index)
            created = await self._wait_all(ids, source, caller, wait_s=wait_s)
        except BaseException:
            await asyncio.shield(self._undo(ids, caller, own_names=body.trajectories is None))
            raise
        async with self._store.read() as tx:
            rows = await queries.environments_by_id(tx, created, project_id=caller.project_id)
        found = {row.id: environment_from_row(row) for row in rows}
        return [found[id] for id in created if id in found]

    async def _wait_all(self, ids: Sequence[UUID], source: Row, caller: Caller, *, wait_s: float) -> list[UUID]:
        """Return the environments in order of their actions. Raises as soon as one of them cannot be created."""
        waiting = [asyncio.create_task(self._actions.get(id, caller, wait_s=wait_s)) for id in ids]
        try:
            for done in asyncio.as_completed(waiting):
                settled = await done
                if settled.outcome is not ActionOutcome.OK:
                    raise _fork_error(settled, ids.index(settled.id), source, len(ids), wait_s)
            return [environment for task in waiting if (environment := task.result().environment) is not None]
        finally:
            for task in waiting:
                task.cancel()

    async def _undo(self, ids: Sequence[UUID], caller: Caller, *, own_names: bool) -> None:
        """Cancel all creations and end the environments that exist already."""
        undoing = (self._undo_one(id, caller, own_name=own_names) for id in ids)
        await asyncio.gather(*undoing, return_exceptions=True)

    async def _undo_one(self, id: UUID, caller: Caller, *, own_name: bool) -> None:
        creation = await self._actions.cancel(id, caller)
        if creation.settled_at is None:
            creation = await self._actions.get(id, caller, wait_s=UNDO_WAIT_S)
        if creation.settled_at is not None:
            await self._environments.discard_environment(creation, caller)
        elif own_name and creation.trajectory is not None:
            # The node does not answer. A name that the client chose may be another environment's, so only the
            # cancellation applies to it.
            await self._actions.end_trajectory(creation.task, creation.trajectory, caller)

    async def _fetch_source(self, id: UUID, caller: Caller) -> Row:
        async with self._store.read() as tx:
            row = await fork_source(tx, id, project_id=caller.project_id)
        if row is None:
            raise NotFound(f"environment {id} does not exist in this project")
        return row

    async def _is_known(self, key: str | None, caller: Caller) -> bool:
        """Return True if an earlier request has begun this attempt. Its forks may exist although the source is over."""
        if key is None:
            return False
        async with self._store.read() as tx:
            return await queries.has_submission_key(tx, [key], project_id=caller.project_id)


def attempt_keys(key: str | None, attempt: int, count: int) -> list[str | None]:
    """Return the keys of the snapshot and of each fork in an attempt."""
    if key is None:
        return [None] * (count + 1)
    own = f"fork-{blake2b(key.encode(), digest_size=16).hexdigest()}-{attempt}"
    return [own, *(f"{own}:{index}" for index in range(count))]


def _body_hash(body: ForkEnvironmentRequest) -> str:
    return blake2b(body.model_dump_json(exclude_defaults=True).encode(), digest_size=16).hexdigest()


def _creations(
    source: Row, body: ForkEnvironmentRequest, keys: Sequence[str | None], cell: int
) -> list[SubmitActionRequest]:
    """Return the actions that create the forks, with the sizes and the variables of the source."""
    names = body.trajectories or [trajectory_name(key, cell) for key in keys]
    idle_ttl_s = body.idle_ttl_s if body.idle_ttl_s is not None else source.idle_ttl_s
    return [
        SubmitActionRequest(
            kind="environment.create",
            task=source.task,
            trajectory=name,
            environment=EnvironmentSelector(scope="trajectory", template=source.template, idle_ttl_s=idle_ttl_s),
            demand=DemandSpec(memory_mib=source.memory_mib, disk_mib=source.disk_mib, pids=source.pids),
            env=json.loads(source.variables or "{}"),
            network=network_from_row(source),
            labels=body.labels,
        )
        for name in names
    ]


def _with_field(error: BaseException, index: int) -> BaseException:
    """Name the fork that was refused in the fields of the error."""
    if isinstance(error, TangramError):
        error.errors = [
            FieldError(field=f"trajectories.{index}", message=each.message) if each.field == "trajectory" else each
            for each in error.errors
        ]
    return error


def _fork_error(creation: Action, index: int, source: Row, count: int, wait_s: float) -> TangramError:
    """Return the error for a fork that was not created."""
    if creation.settled_at is None:
        sizes = f"{source.memory_mib} MiB of memory and {source.disk_mib} MiB of disk"
        return Unavailable(
            f"the {count} forks did not exist within {wait_s:g} s, so none remains: node {source.node} needs {sizes}"
            " for each. End other environments on the node, ask for fewer forks, or raise `wait`",
            retry_after_s=5,
        )
    if creation.outcome in (ActionOutcome.INFRA_ERROR, ActionOutcome.CANCELLED):
        return Unavailable(
            f"fork {index} was not created, so none remains: {creation.outcome}"
            f" ({creation.message or creation.reason or 'another request ended it'}); try again",
            retry_after_s=5,
        )
    error = creation_error(creation)
    if isinstance(error, Conflict):
        return _named_conflict(error, index)
    return Conflict(f"fork {index} was not created, so none remains: {creation.message or creation.reason}")


def _named_conflict(error: Conflict, index: int) -> Conflict:
    message = f"{error.detail}; none of the forks remains"
    return Conflict(message, errors=[FieldError(field=f"trajectories.{index}", message=message)])
