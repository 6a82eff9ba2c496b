"""Reward services, for both clients: items in, an entry for each out, and nothing that was not computed."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from pydantic import ValidationError

from arl_core.states import Outcome
from arl_tangram.bounded import LATE_S, bounded
from arl_tangram.operations import ActionFailed, Call, Operation, answered, run
from arl_tangram.options import check_names, failed_validation, wrong
from arl_wire.actions import Action, SubmitAction
from arl_wire.scores import Score, ScoreItem
from arl_wire.scoring import ScoreAnswer, ScoreRequest
from arl_wire.services import RegisterService, RewardService, RewardServiceList, ServiceVerb

__all__ = ["AsyncRewards", "Rewards", "ScoreOptions", "score_action", "scores_of"]

Value = TypeVar("Value")
OF_A_CALL = frozenset({"task", "trajectory", "step", "priority"})
"""Options that do not need an action of one's own."""
LONGEST_S = 600.0

Item = ScoreItem | Mapping[str, Any] | tuple[str, str] | str
"""A text, a text and its reference, or whatever else the service's kind takes, by the names of `ScoreItem`."""


class ScoreOptions(TypedDict, total=False):
    """The fields of `SubmitAction` that an action of kind `score` has besides its items."""

    task: str
    trajectory: str | None
    profile: str
    step: int | None
    timeout_s: float
    priority: int
    deadline_s: float
    retries: int
    labels: Mapping[str, str]


def score_action(service: str, items: Sequence[Item], **options: Unpack[ScoreOptions]) -> SubmitAction:
    """The action that scores these items, at most 256. Raises `ValidationFailed` naming the field."""
    check_names(options, ScoreOptions.__annotations__)
    body: dict[str, Any] = {"task": "score", **options, "kind": "score", "service": service}
    body["items"] = _items(items)
    try:
        return SubmitAction.model_validate(body)
    except ValidationError as error:
        raise failed_validation(error) from None


def _items(items: Sequence[Item]) -> list[ScoreItem | Mapping[str, Any]]:
    if isinstance(items, str | bytes | Mapping | ScoreItem):
        raise wrong("items", f"a list of items is expected, and not one {type(items).__name__}")
    found = [_item(at, item) for at, item in enumerate(items)]
    if not found:
        raise wrong("items", "there are none")
    return found


def _item(at: int, item: Item) -> ScoreItem | Mapping[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, tuple):
        return item
    if len(item) != 2:
        raise wrong(f"items.{at}", f"a tuple is a text and its reference, and this one has {len(item)} entries")
    return {"text": item[0], "reference": item[1]}


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
        raise wrong("wait_timeout_s", f"{wait_timeout_s:g} is not more than 0")
    action = score_action(service, items, **options)
    within_s = LONGEST_S if wait_timeout_s is None else wait_timeout_s
    if within_s > LONGEST_S or not options.keys() <= OF_A_CALL:
        waiting = run(action, timeout_s=wait_timeout_s, patience_s=patience_s)
        return scores_of((yield from bounded(waiting, wait_timeout_s)))
    body = ScoreRequest(service=service, items=action.items, within_s=within_s, **{"task": "score", **options})
    call = Call(method="POST", path="/v1/scores", body=body, timeout_s=within_s + LATE_S)
    return ScoreAnswer.model_validate_json((yield from bounded(answered(call, patience_s), within_s))).scores


def _registered(wanted: RegisterService, patience_s: float) -> Operation[RewardService]:
    call = Call(method="POST", path="/v1/services", body=wanted)
    return RewardService.model_validate_json((yield from answered(call, patience_s)))


def _changed(name: str, verb: ServiceVerb, patience_s: float) -> Operation[RewardService]:
    call = Call(method="POST", path=f"/v1/services/{quote(name, safe='')}/{verb.value}")
    return RewardService.model_validate_json((yield from answered(call, patience_s)))


def _removed(name: str, patience_s: float) -> Operation[None]:
    yield from answered(Call(method="DELETE", path=f"/v1/services/{quote(name, safe='')}"), patience_s)
