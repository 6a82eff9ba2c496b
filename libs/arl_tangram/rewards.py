"""Reward services, for both clients: items in, an entry for each out, and nothing that was not computed."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import UUID

from pydantic import ValidationError

from arl_core.states import Outcome
from arl_tangram.operations import (
    WAIT_CHUNK_S,
    ActionFailed,
    Call,
    Operation,
    Pause,
    Reply,
    WaitTimeout,
    answered,
    error_of,
    run,
)
from arl_tangram.options import failed_validation
from arl_wire.actions import Action, SubmitAction, WaitRequest
from arl_wire.errors import FieldError, Unavailable, ValidationFailed
from arl_wire.scores import Score, ScoreItem
from arl_wire.scoring import ScoreAnswer, ScoreRequest
from arl_wire.services import RegisterService, RewardService, RewardServiceList, ServiceVerb

__all__ = ["AsyncRewards", "Rewards", "ScoreOptions", "score_action", "scores_of"]

Value = TypeVar("Value")
OF_A_CALL = frozenset({"task", "trajectory", "step", "priority"})
"""Options that do not need an action of one's own."""
LONGEST_S = 600.0
LATE_S = 1.0
"""So much later an answer may come than it was asked for."""

Item = ScoreItem | Mapping[str, Any] | tuple[str, str] | str
"""A text, a text and its reference, or whatever else the service's kind takes, by the names of `ScoreItem`."""


class ScoreOptions(TypedDict, total=False):
    """The fields of `SubmitAction` that an action of kind `score` has besides its items."""

    task: str
    trajectory: str
    profile: str
    step: int
    timeout_s: float
    priority: int
    deadline_s: float
    retries: int
    labels: Mapping[str, str]


def score_action(service: str, items: Sequence[Item], **options: Unpack[ScoreOptions]) -> SubmitAction:
    """The action that scores these items, at most 256. Raises `ValidationFailed` naming the field."""
    body: dict[str, Any] = {"task": "score", **options, "kind": "score", "service": service}
    body["items"] = _items(items)
    try:
        return SubmitAction.model_validate(body)
    except ValidationError as error:
        raise failed_validation(error) from None


def _items(items: Sequence[Item]) -> list[ScoreItem | Mapping[str, Any]]:
    if isinstance(items, str | bytes | Mapping | ScoreItem):
        raise _wrong("items", f"a list of items is expected, and not one {type(items).__name__}")
    found = [_item(at, item) for at, item in enumerate(items)]
    if not found:
        raise _wrong("items", "there are none")
    return found


def _item(at: int, item: Item) -> ScoreItem | Mapping[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, tuple):
        return item
    if len(item) != 2:
        raise _wrong(f"items.{at}", f"a tuple is a text and its reference, and this one has {len(item)} entries")
    return {"text": item[0], "reference": item[1]}


def _wrong(field: str, message: str) -> ValidationFailed:
    return ValidationFailed(f"{field}: {message}", errors=[FieldError(field=field, message=message)])


def scores_of(action: Action) -> list[Score]:
    """An entry for each item: a score, or why there is none. Raises `ActionFailed` where nothing was scored at all.

    That is what an `infra_error` is, for instance: our trouble, which must not become a reward.
    """
    scores = action.result.scores if action.result is not None else None
    if scores is None or action.outcome not in (Outcome.OK, Outcome.USER_ERROR):
        raise ActionFailed(action)
    return scores


class Rewards:
    _patience_s: float

    def score(
        self,
        service: str,
        items: Sequence[Item],
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Score]:
        """Score items and wait for it: an entry for each, in their order. An entry without a score has an `error`.

        With what others of the task ask for meanwhile it goes as one action; `Unavailable` where nothing came of it by
        the service's fault or in `wait_timeout_s`, all tries together, which is 600 where it is None. With an option
        that belongs to an action, or a longer wait, it is one by itself: raises `ActionFailed` where nothing was
        scored, and `WaitTimeout` where it goes on.
        """
        return self._run(_scored(service, items, wait_timeout_s, self._patience_s, options))

    def services(self) -> list[RewardService]:
        """The reward services that nodes offer."""
        return self._run(_services(self._patience_s))

    def register_service(self, wanted: RegisterService) -> RewardService:
        """Offer a model on every node that has its files. Raises `Conflict` where the name is taken."""
        return self._run(_registered(wanted, self._patience_s))

    def change_service(self, name: str, verb: ServiceVerb) -> RewardService:
        """Load, pin, unpin, drain or resume it; the nodes obey at their next look."""
        return self._run(_changed(name, verb, self._patience_s))

    def remove_service(self, name: str) -> None:
        """Raises `Conflict` while actions that name it have not settled."""
        self._run(_removed(name, self._patience_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncRewards:
    """What each method does is said at `Rewards`."""

    _patience_s: float

    async def score(
        self,
        service: str,
        items: Sequence[Item],
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Score]:
        return await self._run(_scored(service, items, wait_timeout_s, self._patience_s, options))

    async def services(self) -> list[RewardService]:
        return await self._run(_services(self._patience_s))

    async def register_service(self, wanted: RegisterService) -> RewardService:
        return await self._run(_registered(wanted, self._patience_s))

    async def change_service(self, name: str, verb: ServiceVerb) -> RewardService:
        return await self._run(_changed(name, verb, self._patience_s))

    async def remove_service(self, name: str) -> None:
        await self._run(_removed(name, self._patience_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _services(patience_s: float) -> Operation[list[RewardService]]:
    call = Call(method="GET", path="/v1/services")
    return RewardServiceList.model_validate_json((yield from answered(call, patience_s))).items


def _scored(
    service: str, items: Sequence[Item], wait_timeout_s: float | None, patience_s: float, options: ScoreOptions
) -> Operation[list[Score]]:
    if wait_timeout_s is not None and not wait_timeout_s > 0:
        raise _wrong("wait_timeout_s", f"{wait_timeout_s:g} is not more than 0")
    action = score_action(service, items, **options)
    within_s = LONGEST_S if wait_timeout_s is None else wait_timeout_s
    if within_s > LONGEST_S or not options.keys() <= OF_A_CALL:
        waiting = run(action, timeout_s=wait_timeout_s, patience_s=patience_s)
        return scores_of((yield from _bounded(waiting, inf if wait_timeout_s is None else wait_timeout_s)))
    body = ScoreRequest(service=service, items=action.items, within_s=within_s, **{"task": "score", **options})
    call = Call(method="POST", path="/v1/scores", body=body, timeout_s=within_s + LATE_S)
    return ScoreAnswer.model_validate_json((yield from _bounded(answered(call, patience_s), within_s))).scores


def _bounded(operation: Operation[Value], limit_s: float) -> Operation[Value]:
    """Each call is told what is left; what would be tried again only after that is `Unavailable`.

    Raises `WaitTimeout` where that is the wait for an action that is there.
    """
    left_s = limit_s
    reply: Reply | None = None
    waits_for: Sequence[UUID] = ()
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            value: Value = end.value
            return value
        if isinstance(step, Pause):
            if step.seconds >= left_s and waits_for:
                raise WaitTimeout(waits_for)
            if step.seconds >= left_s:
                raise Unavailable(f"no scores within {limit_s:g} s{_last(reply)}")
            reply = yield step
            left_s -= step.seconds
        else:
            waits_for = step.body.ids if isinstance(step.body, WaitRequest) else ()
            reply = yield _in_time(step, max(0.0, left_s))
            left_s -= reply.elapsed_s if reply is not None else 0.0


def _last(reply: Reply | None) -> str:
    return "" if reply is None else f"; the last answer: {error_of(reply)}"


def _in_time(call: Call, left_s: float) -> Call:
    """Nor does whoever answers it hold it for longer."""
    body, query = call.body, call.query
    if isinstance(body, ScoreRequest):
        body = body.model_copy(update={"within_s": min(body.within_s, left_s)})
    elif isinstance(body, WaitRequest):
        body = body.model_copy(update={"timeout_s": min(body.timeout_s, left_s)})
    elif query is not None:
        query = {**query, "wait": min(WAIT_CHUNK_S, left_s)}
    return replace(call, body=body, query=query, timeout_s=min(call.timeout_s, left_s + LATE_S))


def _registered(wanted: RegisterService, patience_s: float) -> Operation[RewardService]:
    call = Call(method="POST", path="/v1/services", body=wanted)
    return RewardService.model_validate_json((yield from answered(call, patience_s)))


def _changed(name: str, verb: ServiceVerb, patience_s: float) -> Operation[RewardService]:
    call = Call(method="POST", path=f"/v1/services/{quote(name, safe='')}/{verb.value}")
    return RewardService.model_validate_json((yield from answered(call, patience_s)))


def _removed(name: str, patience_s: float) -> Operation[None]:
    yield from answered(Call(method="DELETE", path=f"/v1/services/{quote(name, safe='')}"), patience_s)
