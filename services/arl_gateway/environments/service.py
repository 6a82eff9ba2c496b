"""Persistent environments by id: created and given files by actions, ended by request, read from rows."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from uuid import UUID

from arl_core.domain.states import ActionOutcome
from arl_gateway.actions import queries
from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.environments.network_policies import NetworkPolicies, network_from_row, network_to_json
from arl_gateway.environments.snapshot_queries import snapshot_by_id
from arl_gateway.http.auth import Caller
from arl_store.tx import PostgresStore, Row
from arl_store.values import uuid7
from arl_wire.actions.action import Action, DemandSpec, EnvironmentSelector, SubmitActionRequest
from arl_wire.cells import GENERATED_TRAJECTORY, with_cell
from arl_wire.environments.environment import (
    EPOCH,
    MICROSECOND,
    CreateEnvironmentRequest,
    EnvironmentInfo,
    EnvironmentListResponse,
    EnvironmentState,
)
from arl_wire.environments.network import UpdateEnvironmentRequest
from arl_wire.errors import (
    BadRequest,
    Conflict,
    FieldError,
    NotFound,
    TangramError,
    TooLarge,
    Unavailable,
    ValidationFailed,
)
from arl_wire.internal.admission import SnapshotSource

__all__ = ["EnvironmentService", "creation_error", "environment_from_row", "not_live_error", "trajectory_name"]

FILES_WAIT_S = 55.0
EXISTS_REASON = "environment_exists"
"""The manager's reason for refusing to create an environment that already exists."""
SIZE_FIELDS = ("memory_mib", "disk_mib", "pids")

SubmissionOrError = SubmitActionRequest | TangramError
"""A submission, or its error."""


class EnvironmentService:
    """The operations on persistent environments."""

    def __init__(
        self, store: PostgresStore, actions: ActionService, networks: NetworkPolicies | None = None, *, cell: int = 0
    ) -> None:
        self._store = store
        self._actions = actions
        self.networks = networks or NetworkPolicies()
        self._cell = cell

    async def create(
        self, body: CreateEnvironmentRequest, caller: Caller, *, key: str | None, trace: RequestTrace, wait_s: float
    ) -> EnvironmentInfo | Action:
        """Create an environment. Return it, or the action if it takes longer than `wait_s`.

        Raises `Conflict` for a name in use.
        """
        body, begins_with = await self._apply_snapshot(body, caller)
        trajectory = body.trajectory or trajectory_name(key, self._cell)
        action = SubmitActionRequest(
            kind="environment.create",
            task=body.task,
            trajectory=trajectory,
            environment=EnvironmentSelector(scope="trajectory", template=body.template, idle_ttl_s=body.idle_ttl_s),
            demand=DemandSpec(memory_mib=body.memory_mib, disk_mib=body.disk_mib, pids=body.pids),
            env=body.env,
            network=self.networks.resolve(body.network),
            files=_encode_files(body.files),
            labels=body.labels,
        )
        try:
            made = await self._actions.submit(
                action, caller, key=key, trace=trace, wait_s=wait_s, source_snapshot=begins_with
            )
        except TangramError as refused:
            refused.errors = [_map_field(each) for each in refused.errors]
            raise
        if made.settled_at is None:
            return made
        if made.outcome is not ActionOutcome.OK:
            await self.discard_environment(made, caller)
            raise creation_error(made)
        if made.environment is None:
            raise NotFound(f"action {made.id} has not recorded its environment")
        return environment_from_row(await self._fetch_row(made.environment, caller))

    async def _apply_snapshot(
        self, body: CreateEnvironmentRequest, caller: Caller
    ) -> tuple[CreateEnvironmentRequest, SnapshotSource | None]:
        """Fill unset fields from the snapshot. Raises NotFound, Conflict or ValidationFailed."""
        if body.snapshot is None:
            return body, None
        async with self._store.read() as tx:
            row = await snapshot_by_id(tx, body.snapshot, caller, as_source=True)
        wrong = None
        if body.files:
            wrong = FieldError(
                field="files", message="is not allowed together with a snapshot: write the files afterwards"
            )
        if body.template != row.template and "template" in body.model_fields_set:
            wrong = FieldError(field="template", message=f"must be the template of the snapshot, {row.template!r}")
        if wrong is not None:
            raise ValidationFailed(f"{wrong.field} {wrong.message}", errors=[wrong])
        stored = {**{name: row[name] for name in (*SIZE_FIELDS, "template")}, "network": network_from_row(row)}
        given = {name: value for name, value in stored.items() if name not in body.model_fields_set}
        return body.model_copy(update=given), SnapshotSource(snapshot=row.id, node=row.node_id)

    async def discard_environment(self, creation: Action, caller: Caller) -> None:
        """Delete the environment that this action created, if any. Its name may belong to another one by now."""
        if creation.environment is not None and creation.reason not in (EXISTS_REASON, "environment_lost"):
            with suppress(NotFound):
                await self.end(creation.environment, caller)

    async def get(self, id: UUID, caller: Caller) -> EnvironmentInfo:
        """Return an environment of the caller's project. Raises `NotFound`."""
        return environment_from_row(await self._fetch_row(id, caller))

    async def update(self, id: UUID, body: UpdateEnvironmentRequest, caller: Caller) -> EnvironmentInfo:
        """Change a live environment. Raises NotFound, Conflict if it is not alive, and ValidationFailed."""
        network = self.networks.resolve(body.network)
        await self.require_live(id, caller)
        async with self._store.write() as tx:
            await queries.set_network(tx, id, network_to_json(network), project_id=caller.project_id)
        return await self.get(id, caller)

    async def find_by_trajectory(self, task: str, trajectory: str, caller: Caller) -> EnvironmentInfo | None:
        """Return the trajectory's environment, alive or not; None if the next action creates one."""
        async with self._store.read() as tx:
            rows = await queries.list_environments(
                tx,
                project_id=caller.project_id,
                task=task,
                trajectory=trajectory,
                state=None,
                before=None,
                limit=1,
            )
        return environment_from_row(rows[0]) if rows and not rows[0].deleted else None

    async def list(
        self,
        caller: Caller,
        *,
        task: str | None,
        trajectory: str | None,
        state: EnvironmentState | None,
        cursor: str | None,
        limit: int,
    ) -> EnvironmentListResponse:
        """Return a page of the project's environments, newest first. Raises `BadRequest` for an invalid cursor."""
        before = _parse_cursor(cursor)
        async with self._store.read() as tx:
            rows = await queries.list_environments(
                tx,
                project_id=caller.project_id,
                task=task,
                trajectory=trajectory,
                state=state,
                before=before,
                limit=limit + 1,
            )
        items = [environment_from_row(row) for row in rows[:limit]]
        return EnvironmentListResponse(items=items, next_cursor=items[-1].cursor if len(rows) > limit else None)

    async def end(self, id: UUID, caller: Caller) -> None:
        """Delete an environment and cancel its trajectory's actions. Do nothing if it was already deleted."""
        row = await self._fetch_row(id, caller)
        if not row.deleted:
            await self._actions.end_trajectory(row.task, row.trajectory, caller)

    async def write(self, id: UUID, path: str, content: bytes, caller: Caller, *, trace: RequestTrace) -> None:
        """Write a file and wait until it is written. Raises `Conflict` if the environment cannot store it."""
        await self._transfer_files(id, caller, trace, files={path: content}, fetch=[])

    async def read(self, id: UUID, path: str, caller: Caller, *, trace: RequestTrace) -> bytes:
        """Return the content of a file. Raises `NotFound`, `TooLarge`, and `Conflict` if the file cannot be read."""
        settled = await self._transfer_files(id, caller, trace, files={}, fetch=[path])
        assert settled.result is not None
        content = settled.result.files.get(path)
        if content is not None:
            return b64decode(content)
        if settled.message:
            raise TooLarge(settled.message)
        raise NotFound(f"file {path!r} does not exist in environment {id}")

    async def resolve_references(
        self, actions: Sequence[SubmissionOrError], caller: Caller, *, key: str | None
    ) -> Sequence[SubmissionOrError]:
        """Resolve networks, and the trajectory of each action that names an environment by id; refuse invalid ones.

        If the key belongs to an earlier submission, the environment may be over: the answer is the earlier action.
        """
        actions = [self._resolve_network(each) for each in actions]
        ids = {each.environment.id for each in actions if isinstance(each, SubmitActionRequest)} - {None}
        if not ids:
            return actions
        async with self._store.read() as tx:
            found = await queries.environments_by_id(tx, sorted(filter(None, ids)), project_id=caller.project_id)
            is_over = key is not None and any(row.state != EnvironmentState.LIVE for row in found)
            keys = [key, *(f"{key}:{at}" for at in range(len(actions)))] if is_over and key is not None else []
            is_repeated = bool(keys) and await queries.has_submission_key(tx, keys, project_id=caller.project_id)
        rows = {row.id: row for row in found}
        return [_resolve_reference(each, rows, must_live=not is_repeated) for each in actions]

    def _resolve_network(self, action: SubmissionOrError) -> SubmissionOrError:
        if isinstance(action, TangramError):
            return action
        try:
            return self.networks.resolve_action(action)
        except ValidationFailed as refused:
            return refused

    async def _transfer_files(
        self, id: UUID, caller: Caller, trace: RequestTrace, *, files: dict[str, bytes], fetch: Sequence[str]
    ) -> Action:
        row = await self.require_live(id, caller)
        action = SubmitActionRequest(
            kind="environment.files",
            task=row.task,
            trajectory=row.trajectory,
            environment=EnvironmentSelector(id=id, scope="trajectory"),
            demand=DemandSpec(memory_mib=row.memory_mib, disk_mib=row.disk_mib, pids=row.pids),
            files=_encode_files(files),
            fetch=list(fetch),
        )
        settled = await self._actions.submit(action, caller, key=None, trace=trace, wait_s=FILES_WAIT_S)
        if settled.settled_at is None:
            settled = await self._actions.cancel(settled.id, caller)
        if settled.settled_at is None or settled.outcome is ActionOutcome.CANCELLED:
            raise Unavailable(f"environment {id} is busy with other actions; try again", retry_after_s=5)
        if settled.outcome is not ActionOutcome.OK:
            raise Conflict(f"environment {id}: {settled.outcome} ({settled.message or settled.reason})")
        return settled

    async def require_live(self, id: UUID, caller: Caller) -> Row:
        """Return the row of a live environment. Raises NotFound, or Conflict if it is not alive."""
        row = await self._fetch_row(id, caller)
        if row.state != EnvironmentState.LIVE:
            raise not_live_error(row)
        return row

    async def _fetch_row(self, id: UUID, caller: Caller) -> Row:
        async with self._store.read() as tx:
            rows = await queries.environments_by_id(tx, [id], project_id=caller.project_id)
        if not rows:
            raise NotFound(f"environment {id} does not exist in this project")
        return rows[0]


def _resolve_reference(action: SubmissionOrError, rows: Mapping[UUID, Row], *, must_live: bool) -> SubmissionOrError:
    if isinstance(action, TangramError) or action.environment.id is None:
        return action
    row = rows.get(action.environment.id)
    if row is None:
        message = f"environment {action.environment.id} does not exist in this project"
        return NotFound(message, errors=[FieldError(field="environment.id", message=message)])
    for field, given, its in (("task", action.task, row.task), ("trajectory", action.trajectory, row.trajectory)):
        if given not in (None, its):
            message = f"environment {row.id} belongs to {field} {its!r}"
            return Conflict(message, errors=[FieldError(field=field, message=message)])
    if must_live and row.state != EnvironmentState.LIVE:
        return not_live_error(row)
    sizes = {name: row[name] for name in SIZE_FIELDS if name not in action.demand.model_fields_set}
    return action.model_copy(
        update={
            "trajectory": row.trajectory,
            "environment": action.environment.model_copy(update={"scope": "trajectory"}),
            "demand": action.demand.model_copy(update=sizes),
        }
    )


def not_live_error(row: Row) -> Conflict:
    """Return the error for an environment that is not alive."""
    message = f"is {row.state}" + (f" ({row.end_reason})" if row.end_reason else "")
    return Conflict(f"environment {row.id} {message}", errors=[FieldError(field="environment.id", message=message)])


def _map_field(error: FieldError) -> FieldError:
    """Map a field to its name in `CreateEnvironmentRequest`, which is flat."""
    return FieldError(field=error.field.rpartition(".")[2], message=error.message)


def creation_error(creation: Action) -> TangramError:
    """Return the error for an action that created no environment."""
    if creation.reason == EXISTS_REASON:
        message = f"trajectory {creation.trajectory!r} already has an environment; end it first"
    elif creation.reason == "environment_lost":
        message = f"the environment of trajectory {creation.trajectory!r} is lost; end the trajectory to reuse its name"
    elif creation.outcome in (ActionOutcome.USER_ERROR, ActionOutcome.LIMIT_EXCEEDED):
        message = creation.message or f"the files do not fit ({creation.reason})"
        return ValidationFailed(f"files: {message}", errors=[FieldError(field="files", message=message)])
    else:
        return Conflict(f"the environment was not created: {creation.outcome} ({creation.message or creation.reason})")
    return Conflict(message, errors=[FieldError(field="trajectory", message=message)])


def _encode_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: b64encode(content) for path, content in files.items()}


def trajectory_name(key: str | None, cell: int) -> str:
    """Return a name that ends with an id of the cell. It is equal for repeated requests with the same key."""
    if key is None:
        return f"{GENERATED_TRAJECTORY}{uuid7(cell)}"
    return f"{GENERATED_TRAJECTORY}{with_cell(UUID(bytes=blake2b(key.encode(), digest_size=16).digest()), cell).hex}"


def environment_from_row(row: Row) -> EnvironmentInfo:
    """Return an environment as clients see it."""
    return EnvironmentInfo(
        id=row.id,
        task=row.task,
        trajectory=row.trajectory,
        state=row.state,
        end_reason=row.end_reason,
        node=row.node,
        template=row.template,
        memory_mib=row.memory_mib,
        disk_mib=row.disk_mib,
        pids=row.pids,
        idle_ttl_s=row.idle_ttl_s,
        network=network_from_row(row),
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        ended_at=row.gone_at,
    )


def _parse_cursor(cursor: str | None) -> tuple[datetime, UUID] | None:
    if cursor is None:
        return None
    at, _, id = cursor.partition(".")
    try:
        return EPOCH + int(at) * MICROSECOND, UUID(id)
    except (ValueError, OverflowError):
        message = "is not a cursor of this list; take it from next_cursor"
        raise BadRequest(
            f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)]
        ) from None
