"""Calls of SWE-ReX's runtime: each runs actions in its environment and blocks until they settle."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from fastapi import Request
from pydantic import ValidationError

from arl_gateway.actions.service import ActionService
from arl_gateway.blocking.command_runner import CommandRunner
from arl_gateway.compat.swerex import sessions
from arl_gateway.compat.swerex.errors import SwerexError, raise_if_infra_error
from arl_gateway.compat.swerex.files import FileTransfer
from arl_gateway.compat.swerex.target import SwerexTarget, resolve_target
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.archives import ArchiveService
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import request_trace
from arl_kit.app import validation_failed
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.actions.action import Action, ActionListResponse, SubmitActionRequest
from arl_wire.environments.environment import EnvironmentInfo, EnvironmentState
from arl_wire.errors import NotFound, TangramError, TooManyRequests, Unavailable, ValidationFailed

__all__ = ["FILE_TIMEOUT_S", "SwerexRuntime", "not_alive_reason", "resolve_runtime"]

MAX_TIMEOUT_S = 86400.0
"""Seconds that stand for no timeout."""
MIN_TIMEOUT_S = 1e-6
FILE_TIMEOUT_S = 60.0
RECENT_ACTIONS, MAX_PAGES = 100, 20


@dataclass(frozen=True, slots=True)
class SwerexRuntime:
    """The runtime of one call. Raises SwerexError for refused actions."""

    request: Request
    caller: Caller
    target: SwerexTarget
    marker: str
    """Marker in the executed scripts. It is equal for a repeated request, so that idempotency keys match."""
    idempotency_key: str | None

    async def run(
        self,
        action_fields: Mapping[str, Any],
        *,
        timeout_s: float | None,
        profile: str | None = None,
        key_suffix: str = "",
    ) -> Action:
        """Run an action and wait until it settles. If the client disconnects, the action is cancelled.

        `key_suffix` distinguishes several actions of one call.
        """
        if (why_not := not_alive_reason(self.target.environment)) is not None:
            if self.target.environment is not None and self.target.environment.state is EnvironmentState.LOST:
                raise SwerexError(f"infra_error: {why_not}", code="conflict", is_infrastructure=True)
            raise SwerexError(why_not, code="conflict")
        limit_s = MAX_TIMEOUT_S if timeout_s is None else min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, timeout_s))
        common = {"task": self.target.task, "trajectory": self.target.trajectory, "profile": profile}
        action = _build_action({**self.target.action_fields, **common, **action_fields, "timeout_s": limit_s})
        key = self.idempotency_key and self.idempotency_key + key_suffix
        await self.request.body()  # read before `cancel_on_disconnect`, which expects only the disconnect message
        held: CommandRunner = gateway_deps(self.request).command_runner
        try:
            settling = held.run(action, self.caller, request_trace(self.request), key=key)
            return await cancel_on_disconnect(self.request, settling)
        except TangramError as refused:
            raise _swerex_error(refused) from refused

    async def run_in_session(self, session: str, command: str, *, timeout_s: float | None) -> Action:
        """Run a command in a session. Its stdin stays open, as in SWE-ReX's terminal, so programs may block on
        input.
        """
        name = sessions.session_name(session)
        given = {"session": name, "command": command, "stdin_open": True, "labels": {sessions.SESSION_LABEL: name}}
        return await self.run(given, timeout_s=timeout_s)

    async def transfer_files(self, transfer: FileTransfer, *, profile: str) -> Action:
        """Run the action of a transfer. Content above the input limit is uploaded first and removed after a failure."""
        if transfer.archive is not None:
            try:
                await cancel_on_disconnect(self.request, self._stage_archive(transfer.archive, transfer.staging_path))
            except TangramError as refused:
                await self.run(
                    {"argv": ["rm", "-rf", "--", transfer.staging_path]}, timeout_s=FILE_TIMEOUT_S, key_suffix="removed"
                )
                raise _swerex_error(refused) from refused
        return await self.run(transfer.action_fields, timeout_s=FILE_TIMEOUT_S, profile=profile)

    async def environment(self) -> EnvironmentInfo | None:
        """Return the environment; None if the next action creates it."""
        if self.target.environment is not None:
            return self.target.environment
        return await self._environments.find_by_trajectory(self.target.task, self.target.trajectory, self.caller)

    async def timed_out_output(self, session: str, before: Action) -> str:
        """Return the output of the session's last command if its timeout ended it, which is when it was interrupted."""
        name = sessions.session_name(session)
        for action in (await self._page(None, RECENT_ACTIONS)).items:
            if action.id < before.id and action.labels.get(sessions.SESSION_LABEL) == name:
                return sessions.timed_out_output(await self._actions.get(action.id, self.caller))
        return ""

    async def close(self) -> None:
        """Close all sessions. Delete the environment if its trajectory's first use created it."""
        known = await self.environment()
        if known is None or not_alive_reason(known) is not None:
            return
        if self.target.environment is not None:
            for name in await self._recent_sessions():
                given = {"session": name, "command": sessions.CLOSE_COMMAND, "labels": {sessions.SESSION_LABEL: name}}
                await self.run(given, timeout_s=sessions.CLOSE_TIMEOUT_S, key_suffix=name)
            return
        try:
            await self._environments.end(known.id, self.caller)
        except TangramError as refused:
            raise _swerex_error(refused) from refused

    async def _recent_sessions(self) -> Iterable[str]:
        """Return the internal names of all sessions used recently."""
        found: dict[str, None] = {}
        cursor, pages = None, 0
        while pages == 0 or (cursor is not None and pages < MAX_PAGES):
            page = await self._page(cursor, 1000)
            found |= dict.fromkeys(filter(None, (each.labels.get(sessions.SESSION_LABEL) for each in page.items)))
            cursor, pages = page.next_cursor, pages + 1
        return found

    async def _stage_archive(self, archive: bytes, at: str) -> None:
        known = await self.environment()
        where = known.id if known is not None else await self._create_environment()
        archives: ArchiveService = gateway_deps(self.request).archives
        await archives.unpack(
            where, self.caller, path=at, archive=_single_chunk(archive), trace=request_trace(self.request)
        )

    async def _create_environment(self) -> UUID:
        made = await self.run({"kind": "environment.create"}, timeout_s=FILE_TIMEOUT_S, key_suffix="made")
        raise_if_infra_error(made)
        if made.environment is None:
            raise SwerexError(
                f"the environment could not be created: {made.message or made.outcome}", action=str(made.id)
            )
        return made.environment

    @property
    def _environments(self) -> EnvironmentService:
        environments: EnvironmentService = gateway_deps(self.request).environments
        return environments

    @property
    def _actions(self) -> ActionService:
        actions: ActionService = gateway_deps(self.request).actions
        return actions

    async def _page(self, cursor: str | None, limit: int) -> ActionListResponse:
        task, trajectory = self.target.task, self.target.trajectory
        return await self._actions.list(
            self.caller, task=task, trajectory=trajectory, state=None, cursor=cursor, limit=limit
        )


async def _single_chunk(content: bytes) -> AsyncIterator[bytes]:
    yield content


def not_alive_reason(environment: EnvironmentInfo | None) -> str | None:
    """Return the reason why commands cannot run in the environment; None if they can."""
    if environment is None or environment.state is EnvironmentState.LIVE:
        return None
    why = f" ({environment.end_reason})" if environment.end_reason else ""
    return f"environment {environment.id} is {environment.state}{why}"


async def resolve_runtime(request: Request, caller: Caller) -> SwerexRuntime:
    """Resolve the target of a call. Raises SwerexError if the caller has no such environment."""
    try:
        place = await resolve_target(request, caller)
    except (NotFound, ValidationFailed) as wrong:
        raise _swerex_error(wrong) from wrong
    said = request.headers.get("x-request-id")
    if said is None:
        return SwerexRuntime(request, caller, place, uuid4().hex, None)
    of = f"{request.url.path}\n{said}"
    digest = sha256(of.encode(errors="surrogatepass")).hexdigest()
    return SwerexRuntime(request, caller, place, digest[:32], f"swerex-{digest}")


def _build_action(fields: dict[str, Any]) -> SubmitActionRequest:
    try:
        return SubmitActionRequest.model_validate(fields)
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise _swerex_error(validation_failed(wrong)) from None


def _swerex_error(refused: TangramError) -> SwerexError:
    """Convert a refusal. Missing capacity or a missing service is an infrastructure error, not the command's."""
    if isinstance(refused, TooManyRequests | Unavailable):
        return SwerexError(f"infra_error: {refused.detail}", code=refused.code, is_infrastructure=True)
    return SwerexError(refused.detail, code=refused.code)
