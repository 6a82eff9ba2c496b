"""What one call of SWE-ReX's asks of its environment: actions, each held for until it has settled."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from fastapi import Request
from pydantic import ValidationError

from arl_gateway.archives import Archives
from arl_gateway.auth import Caller
from arl_gateway.compat.swerex import shells
from arl_gateway.compat.swerex.errors import RaisedThere, unless_ours
from arl_gateway.compat.swerex.files import Parcel
from arl_gateway.compat.swerex.places import Place, place_of
from arl_gateway.environments import Environments
from arl_gateway.held_commands import HeldCommands
from arl_gateway.routes import trace_of
from arl_gateway.service import Actions
from arl_kit.app import validation_failed
from arl_kit.hops import unless_gone
from arl_wire.actions import Action, ActionPage, SubmitAction
from arl_wire.environments import Environment, EnvironmentState
from arl_wire.errors import NotFound, TangramError, TooManyRequests, Unavailable, ValidationFailed

__all__ = ["FILES_WITHIN_S", "Runtime", "runtime_of", "why_not_alive"]

A_DAY_S = 86400.0
"""What no timeout is."""
SHORTEST_S = 1e-6
FILES_WITHIN_S = 60.0
LAST, MOST_PAGES = 100, 20


@dataclass(frozen=True, slots=True)
class Runtime:
    """Of one call. Raises RaisedThere for whatever is refused."""

    request: Request
    caller: Caller
    place: Place
    mark: str
    """The same where the same request comes again: it stands in what is run."""
    key: str | None

    async def run(
        self, given: Mapping[str, Any], *, timeout_s: float | None, profile: str | None = None, of: str = ""
    ) -> Action:
        """Settled. Where the caller goes away, it is cancelled. `of` tells several of one call apart."""
        if (why_not := why_not_alive(self.place.environment)) is not None:
            if self.place.environment is not None and self.place.environment.state is EnvironmentState.LOST:
                raise RaisedThere(f"infra_error: {why_not}", code="conflict", is_infrastructure=True)
            raise RaisedThere(why_not, code="conflict")
        limit_s = A_DAY_S if timeout_s is None else min(A_DAY_S, max(SHORTEST_S, timeout_s))
        common = {"task": self.place.task, "trajectory": self.place.trajectory, "profile": profile}
        action = _action({**self.place.given, **common, **given, "timeout_s": limit_s})
        key = self.key and self.key + of
        await self.request.body()  # what comes after it is that the caller goes away
        held: HeldCommands = self.request.app.state.held_commands
        try:
            settling = held.settled(action, self.caller, trace_of(self.request), key=key)
            return await unless_gone(self.request, settling)
        except TangramError as refused:
            raise _raised(refused) from refused

    async def run_in(self, session: str, command: str, *, timeout_s: float | None) -> Action:
        """In a shell that stays open. Its programs can wait for input that does not come, as in SWE-ReX's terminal."""
        name = shells.name_of(session)
        given = {"session": name, "command": command, "stdin_open": True, "labels": {shells.LABEL: name}}
        return await self.run(given, timeout_s=timeout_s)

    async def deliver(self, parcel: Parcel, *, profile: str) -> Action:
        if parcel.archive is not None:
            try:
                await unless_gone(self.request, self._lay(parcel.archive, parcel.laid_at))
            except TangramError as refused:
                await self.run({"argv": ["rm", "-rf", "--", parcel.laid_at]}, timeout_s=FILES_WITHIN_S, of="removed")
                raise _raised(refused) from refused
        return await self.run(parcel.given, timeout_s=FILES_WITHIN_S, profile=profile)

    async def environment(self) -> Environment | None:
        """None where the next action makes it."""
        if self.place.environment is not None:
            return self.place.environment
        return await self._environments.of_trajectory(self.place.task, self.place.trajectory, self.caller)

    async def output_cut_off(self, session: str, before: Action) -> str:
        """What the session's last command showed, if its timeout ended it: that was when it was interrupted."""
        name = shells.name_of(session)
        for action in (await self._page(None, LAST)).items:
            if action.id < before.id and action.labels.get(shells.LABEL) == name:
                return shells.cut_off(await self._actions.get(action.id, self.caller))
        return ""

    async def close(self) -> None:
        """With all sessions; and the environment, where it was made by its first use."""
        known = await self.environment()
        if known is None or why_not_alive(known) is not None:
            return
        if self.place.environment is not None:
            for name in await self._sessions():
                given = {"session": name, "command": shells.CLOSE, "labels": {shells.LABEL: name}}
                await self.run(given, timeout_s=shells.CLOSES_WITHIN_S, of=name)
            return
        try:
            await self._environments.end(known.id, self.caller)
        except TangramError as refused:
            raise _raised(refused) from refused

    async def _sessions(self) -> Iterable[str]:
        """By our names, all that were used here lately."""
        found: dict[str, None] = {}
        cursor, pages = None, 0
        while pages == 0 or (cursor is not None and pages < MOST_PAGES):
            page = await self._page(cursor, 1000)
            found |= dict.fromkeys(filter(None, (each.labels.get(shells.LABEL) for each in page.items)))
            cursor, pages = page.next_cursor, pages + 1
        return found

    async def _lay(self, archive: bytes, at: str) -> None:
        known = await self.environment()
        where = known.id if known is not None else await self._made()
        archives: Archives = self.request.app.state.archives
        await archives.unpack(where, self.caller, path=at, archive=_at_once(archive), trace=trace_of(self.request))

    async def _made(self) -> UUID:
        made = await self.run({"kind": "environment.create"}, timeout_s=FILES_WITHIN_S, of="made")
        unless_ours(made)
        if made.environment is None:
            raise RaisedThere(f"there is no environment: {made.message or made.outcome}", action=str(made.id))
        return made.environment

    @property
    def _environments(self) -> Environments:
        environments: Environments = self.request.app.state.environments
        return environments

    @property
    def _actions(self) -> Actions:
        actions: Actions = self.request.app.state.actions
        return actions

    async def _page(self, cursor: str | None, limit: int) -> ActionPage:
        task, trajectory = self.place.task, self.place.trajectory
        return await self._actions.list(
            self.caller, task=task, trajectory=trajectory, state=None, cursor=cursor, limit=limit
        )


async def _at_once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def why_not_alive(environment: Environment | None) -> str | None:
    if environment is None or environment.state is EnvironmentState.LIVE:
        return None
    why = f" ({environment.end_reason})" if environment.end_reason else ""
    return f"environment {environment.id} is {environment.state}{why}"


async def runtime_of(request: Request, caller: Caller) -> Runtime:
    """Raises RaisedThere for an environment that the caller does not have."""
    try:
        place = await place_of(request, caller)
    except (NotFound, ValidationFailed) as wrong:
        raise _raised(wrong) from wrong
    said = request.headers.get("x-request-id")
    if said is None:
        return Runtime(request, caller, place, uuid4().hex, None)
    of = f"{request.url.path}\n{said}"
    digest = sha256(of.encode(errors="surrogatepass")).hexdigest()
    return Runtime(request, caller, place, digest[:32], f"swerex-{digest}")


def _action(given: dict[str, Any]) -> SubmitAction:
    try:
        return SubmitAction.model_validate(given)
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise _raised(validation_failed(wrong)) from None


def _raised(refused: TangramError) -> RaisedThere:
    """Where there was no room, or no service, that says nothing about the command."""
    if isinstance(refused, TooManyRequests | Unavailable):
        return RaisedThere(f"infra_error: {refused.detail}", code=refused.code, is_infrastructure=True)
    return RaisedThere(refused.detail, code=refused.code)
