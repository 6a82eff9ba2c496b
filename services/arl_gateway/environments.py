"""Persistent environments by their ids: made and given files by actions, ended by a wish, read from rows."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from uuid import UUID

from arl_core.states import Outcome
from arl_gateway import repository
from arl_gateway.auth import Caller
from arl_gateway.service import Actions, Trace
from arl_gateway.snapshot_rows import source_of
from arl_kit.ids import uuid7
from arl_store.tx import Row, Store
from arl_wire.actions import Action, Demand, EnvironmentRequest, SubmitAction
from arl_wire.environments import CreateEnvironment, Environment, EnvironmentPage, EnvironmentState
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
from arl_wire.internal import BeginsWith

__all__ = ["Environments"]

FILES_WAIT_S = 55.0
EXISTS = "environment_exists"
"""Why the manager refuses to make an environment that somebody uses already."""
SIZES = ("memory_mib", "disk_mib", "pids")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

Asked = SubmitAction | TangramError
"""A submission, or why it is none."""


class Environments:
    def __init__(self, store: Store, actions: Actions) -> None:
        self._store = store
        self._actions = actions

    async def create(
        self, body: CreateEnvironment, caller: Caller, *, key: str | None, trace: Trace, wait_s: float
    ) -> Environment | Action:
        """The environment, or the action that makes it where that takes longer. Raises `Conflict` for a taken name."""
        body, begins_with = await self._begun(body, caller)
        trajectory = body.trajectory or _name_for(key)
        action = SubmitAction(
            kind="environment.create",
            task=body.task,
            trajectory=trajectory,
            environment=EnvironmentRequest(scope="trajectory", template=body.template, idle_ttl_s=body.idle_ttl_s),
            demand=Demand(memory_mib=body.memory_mib, disk_mib=body.disk_mib, pids=body.pids),
            env=body.env,
            files=_encoded(body.files),
            labels=body.labels,
        )
        try:
            made = await self._actions.submit(
                action, caller, key=key, trace=trace, wait_s=wait_s, begins_with=begins_with
            )
        except TangramError as refused:
            refused.errors = [_as_asked(each) for each in refused.errors]
            raise
        if made.settled_at is None:
            return made
        if made.outcome is not Outcome.OK:
            await self._undo(made, caller)
            raise _not_made(made)
        if made.environment is None:
            raise NotFound(f"action {made.id} does not say which environment it made")
        return _shown(await self._row(made.environment, caller))

    async def _begun(self, body: CreateEnvironment, caller: Caller) -> tuple[CreateEnvironment, BeginsWith | None]:
        """With what its snapshot says and it does not. Raises NotFound, Conflict or ValidationFailed."""
        if body.snapshot is None:
            return body, None
        async with self._store.read() as tx:
            row = await source_of(tx, body.snapshot, caller, to_begin_with=True)
        wrong = None
        if body.files:
            wrong = FieldError(field="files", message="cannot be given beside a snapshot; write them afterwards")
        if body.template != row.template and "template" in body.model_fields_set:
            wrong = FieldError(field="template", message=f"is not that of the snapshot, {row.template!r}")
        if wrong is not None:
            raise ValidationFailed(f"{wrong.field} {wrong.message}", errors=[wrong])
        given = {name: row[name] for name in (*SIZES, "template") if name not in body.model_fields_set}
        return body.model_copy(update=given), BeginsWith(snapshot=row.id, node=row.node_id)

    async def _undo(self, made: Action, caller: Caller) -> None:
        """What this very action made, and not as asked for, does not stay; its name may be another's by now."""
        if made.environment is not None and made.reason not in (EXISTS, "environment_lost"):
            with suppress(NotFound):
                await self.end(made.environment, caller)

    async def get(self, id: UUID, caller: Caller) -> Environment:
        return _shown(await self._row(id, caller))

    async def of_trajectory(self, task: str, trajectory: str, caller: Caller) -> Environment | None:
        """The one that has its name, living or not; None where the next action makes one."""
        async with self._store.read() as tx:
            rows = await repository.list_environments(
                tx,
                project_id=caller.project_id,
                task=task,
                trajectory=trajectory,
                state=None,
                before=None,
                limit=1,
            )
        return _shown(rows[0]) if rows and not rows[0].deleted else None

    async def list(
        self,
        caller: Caller,
        *,
        task: str | None,
        trajectory: str | None,
        state: EnvironmentState | None,
        cursor: str | None,
        limit: int,
    ) -> EnvironmentPage:
        before = _cursor(cursor)
        async with self._store.read() as tx:
            rows = await repository.list_environments(
                tx,
                project_id=caller.project_id,
                task=task,
                trajectory=trajectory,
                state=state,
                before=before,
                limit=limit + 1,
            )
        items = [_shown(row) for row in rows[:limit]]
        return EnvironmentPage(items=items, next_cursor=_cursor_of(items[-1]) if len(rows) > limit else None)

    async def end(self, id: UUID, caller: Caller) -> None:
        """With its trajectory's actions. Nothing, if its name belongs to another one by now."""
        row = await self._row(id, caller)
        if not row.deleted:
            await self._actions.end_trajectory(row.task, row.trajectory, caller)

    async def write(self, id: UUID, path: str, content: bytes, caller: Caller, *, trace: Trace) -> None:
        """Returns when it is written. Raises `Conflict` where the environment cannot take it."""
        await self._move(id, caller, trace, files={path: content}, fetch=[])

    async def read(self, id: UUID, path: str, caller: Caller, *, trace: Trace) -> bytes:
        settled = await self._move(id, caller, trace, files={}, fetch=[path])
        assert settled.result is not None
        content = settled.result.files.get(path)
        if content is not None:
            return b64decode(content)
        if settled.message:
            raise TooLarge(settled.message)
        raise NotFound(f"there is no file {path!r} in environment {id}")

    async def named(self, actions: Sequence[Asked], caller: Caller, *, key: str | None) -> Sequence[Asked]:
        """Each with the trajectory of the environment that it names by id, and refused where it can't be.

        With a key that stands for an action the environment may be over: that action is the answer.
        """
        ids = {each.environment.id for each in actions if isinstance(each, SubmitAction)} - {None}
        if not ids:
            return actions
        async with self._store.read() as tx:
            found = await repository.environments_by_id(tx, sorted(filter(None, ids)), project_id=caller.project_id)
            is_over = key is not None and any(row.state != EnvironmentState.LIVE for row in found)
            keys = [key, *(f"{key}:{at}" for at in range(len(actions)))] if is_over and key is not None else []
            is_repeated = bool(keys) and await repository.knows_key(tx, keys, project_id=caller.project_id)
        rows = {row.id: row for row in found}
        return [_named(each, rows, must_live=not is_repeated) for each in actions]

    async def _move(
        self, id: UUID, caller: Caller, trace: Trace, *, files: dict[str, bytes], fetch: Sequence[str]
    ) -> Action:
        row = await self.live(id, caller)
        action = SubmitAction(
            kind="environment.files",
            task=row.task,
            trajectory=row.trajectory,
            environment=EnvironmentRequest(id=id, scope="trajectory"),
            demand=Demand(memory_mib=row.memory_mib, disk_mib=row.disk_mib, pids=row.pids),
            files=_encoded(files),
            fetch=list(fetch),
        )
        settled = await self._actions.submit(action, caller, key=None, trace=trace, wait_s=FILES_WAIT_S)
        if settled.settled_at is None:
            settled = await self._actions.cancel(settled.id, caller)
        if settled.settled_at is None or settled.outcome is Outcome.CANCELLED:
            raise Unavailable(f"environment {id} is busy with other actions; try again", retry_after_s=5)
        if settled.outcome is not Outcome.OK:
            raise Conflict(f"environment {id}: {settled.outcome} ({settled.message or settled.reason})")
        return settled

    async def live(self, id: UUID, caller: Caller) -> Row:
        """Raises NotFound, or Conflict for one that is over."""
        row = await self._row(id, caller)
        if row.state != EnvironmentState.LIVE:
            raise _over(row)
        return row

    async def _row(self, id: UUID, caller: Caller) -> Row:
        async with self._store.read() as tx:
            rows = await repository.environments_by_id(tx, [id], project_id=caller.project_id)
        if not rows:
            raise NotFound(f"there is no environment {id}")
        return rows[0]


def _named(action: Asked, rows: Mapping[UUID, Row], *, must_live: bool) -> Asked:
    if isinstance(action, TangramError) or action.environment.id is None:
        return action
    row = rows.get(action.environment.id)
    if row is None:
        message = f"there is no environment {action.environment.id}"
        return NotFound(message, errors=[FieldError(field="environment.id", message=message)])
    for field, given, its in (("task", action.task, row.task), ("trajectory", action.trajectory, row.trajectory)):
        if given not in (None, its):
            message = f"environment {row.id} belongs to {field} {its!r}"
            return Conflict(message, errors=[FieldError(field=field, message=message)])
    if must_live and row.state != EnvironmentState.LIVE:
        return _over(row)
    sizes = {name: row[name] for name in SIZES if name not in action.demand.model_fields_set}
    return action.model_copy(
        update={
            "trajectory": row.trajectory,
            "environment": action.environment.model_copy(update={"scope": "trajectory"}),
            "demand": action.demand.model_copy(update=sizes),
        }
    )


def _over(row: Row) -> Conflict:
    message = f"is {row.state}" + (f" ({row.end_reason})" if row.end_reason else "")
    return Conflict(f"environment {row.id} {message}", errors=[FieldError(field="environment.id", message=message)])


def _as_asked(error: FieldError) -> FieldError:
    """In the words of `CreateEnvironment`, which has no parts."""
    return FieldError(field=error.field.rpartition(".")[2], message=error.message)


def _not_made(made: Action) -> TangramError:
    if made.reason == EXISTS:
        message = f"trajectory {made.trajectory!r} has an environment already; end it first"
    elif made.reason == "environment_lost":
        message = f"the environment of trajectory {made.trajectory!r} is gone; end the trajectory to use its name again"
    elif made.outcome in (Outcome.USER_ERROR, Outcome.LIMIT_EXCEEDED):
        message = made.message or f"they do not fit ({made.reason})"
        return ValidationFailed(f"files: {message}", errors=[FieldError(field="files", message=message)])
    else:
        return Conflict(f"the environment was not made: {made.outcome} ({made.message or made.reason})")
    return Conflict(message, errors=[FieldError(field="trajectory", message=message)])


def _encoded(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: b64encode(content) for path, content in files.items()}


def _name_for(key: str | None) -> str:
    """The same for a repeated request."""
    return f"environment-{uuid7() if key is None else blake2b(key.encode(), digest_size=16).hexdigest()}"


def _shown(row: Row) -> Environment:
    return Environment(
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
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        gone_at=row.gone_at,
    )


def _cursor_of(last: Environment) -> str:
    return f"{(last.created_at - EPOCH) // MICROSECOND}.{last.id}"


def _cursor(cursor: str | None) -> tuple[datetime, UUID] | None:
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
