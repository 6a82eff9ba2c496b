"""Reward services, for both clients: one entry for each item, with a computed score or an error."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from arl_core.domain.states import ActionOutcome
from arl_tangram.batches import submit_many
from arl_tangram.operations import ActionFailed, BatchRefused, Operation, SdkRequest, call_with_retry, cancel, run, wait
from arl_tangram.options import check_option_names, invalid_field, validate_request
from arl_tangram.timeouts import RESPONSE_GRACE_S, with_timeout
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.reward_services.service import (
    RegisterRewardServiceRequest,
    RewardService,
    RewardServiceListResponse,
    ScoreRequest,
    ScoreResponse,
    ServiceOperation,
    ServiceOptions,
)
from arl_wire.scores import MAX_ITEMS, ItemError, Score, ScoreItem

__all__ = ["AsyncRewardServiceMethods", "RewardServiceMethods", "ScoreOptions", "score_action", "scores_of"]

Value = TypeVar("Value")
COALESCABLE_OPTIONS = frozenset({"task", "trajectory", "step", "priority"})
"""Options that do not require a separate action."""
MAX_SCORE_WAIT_S = 600.0

ScoreInput = ScoreItem | Mapping[str, Any] | tuple[str, str] | str
"""A text, a pair of text and reference, or the fields of `ScoreItem` that the service's kind needs."""


class ScoreOptions(TypedDict, total=False):
    """The fields of `SubmitActionRequest` for an action of kind `score`, without its items."""

    task: str
    trajectory: str | None
    profile: str
    step: int | None
    prompt: str
    group: str
    expected_turns: int
    progress: float
    timeout_s: float
    priority: int
    deadline_s: float
    retries: int
    labels: Mapping[str, str]


def score_action(service: str, items: Sequence[ScoreInput], **options: Unpack[ScoreOptions]) -> SubmitActionRequest:
    """Build the action that scores these items, at most 256. Raises `ValidationFailed` naming the field."""
    check_option_names(options, ScoreOptions.__annotations__)
    body: dict[str, Any] = {"task": "score", **options, "kind": "score", "service": service}
    body["items"] = _normalize_items(items)
    return validate_request(SubmitActionRequest, body)


def _normalize_items(items: Sequence[ScoreInput]) -> list[ScoreItem | Mapping[str, Any]]:
    if isinstance(items, str | bytes | Mapping | ScoreItem):
        raise invalid_field("items", f"expected a list of items, got {type(items).__name__}")
    found = [_normalize_item(at, item) for at, item in enumerate(items)]
    if not found:
        raise invalid_field("items", "is empty; give at least one item")
    return found


def _normalize_item(index: int, item: ScoreInput) -> ScoreItem | Mapping[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, tuple):
        return item
    if len(item) != 2:
        raise invalid_field(
            f"items.{index}", f"expected a pair of text and reference, got a tuple of {len(item)} entries"
        )
    return {"text": item[0], "reference": item[1]}


def scores_of(action: Action) -> list[Score]:
    """Return an entry for each item: a score or an error. Raises `ActionFailed` if nothing was scored.

    An example is `infra_error`: an infrastructure error must not become a reward.
    """
    scores = action.result.scores if action.result is not None else None
    if scores is None or action.outcome not in (ActionOutcome.OK, ActionOutcome.USER_ERROR):
        raise ActionFailed(action)
    return scores


class RewardServiceMethods:
    """Methods for reward services."""

    _retry_timeout_s: float

    def score(
        self,
        service: str,
        items: Sequence[ScoreInput],
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Score]:
        """Score items, wait, and return an entry for each, in order. An entry without a score has an `error`.

        Concurrent requests of the task are combined into one action. If an option requires a separate action, or the
        wait is longer than 600 s, the items are one action of their own. More than 256 items become several actions
        that run concurrently; if one of them fails, its items have an `error`.

        Args:
            service: Name of a reward service; `reward_services` lists them.
            items: Texts, pairs of text and reference, or `ScoreItem`s.
            wait_timeout_s: Maximum seconds to wait, with all retries; None means 600.
            options: Fields of the action, such as `task` and `priority`.

        Raises:
            Unavailable: The service failed or `wait_timeout_s` passed.
            ActionFailed: A separate action scored nothing, because of an infrastructure error for example.
            WaitTimeout: A separate action continues after `wait_timeout_s`.
        """
        return self._run(_score(service, items, wait_timeout_s, self._retry_timeout_s, options))

    def reward_services(self) -> list[RewardService]:
        """List the reward services that nodes offer."""
        return self._run(_list_reward_services(self._retry_timeout_s))

    def register_reward_service(
        self, name: str, *, kind: str, source: str, options: ServiceOptions | Mapping[str, Any] | None = None
    ) -> RewardService:
        """Register a model or an engine; every node that has its files serves it. Raises `Conflict`.

        Args:
            name: Name that `score` uses.
            kind: Kind of the service, such as `sequence-classifier` or `judge`.
            source: Directory below the nodes' model directory; for a judge, the name of its engine.
            options: Fields of `ServiceOptions`.
        """
        return self._run(_register(_registration(name, kind, source, options), self._retry_timeout_s))

    def change_reward_service(self, name: str, verb: ServiceOperation) -> RewardService:
        """Load, pin, unpin, drain or resume a service. Nodes apply the change at their next poll."""
        return self._run(_change(name, verb, self._retry_timeout_s))

    def unregister_reward_service(self, name: str) -> None:
        """Unregister a service. Raises `Conflict` while actions that name it have not settled."""
        self._run(_unregister(name, self._retry_timeout_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncRewardServiceMethods:
    """Asynchronous methods for reward services."""

    _retry_timeout_s: float

    async def score(
        self,
        service: str,
        items: Sequence[ScoreInput],
        *,
        wait_timeout_s: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Score]:
        """Score items, wait, and return an entry for each, in order. An entry without a score has an `error`.

        Concurrent requests of the task are combined into one action. If an option requires a separate action, or the
        wait is longer than 600 s, the items are one action of their own. More than 256 items become several actions
        that run concurrently; if one of them fails, its items have an `error`.

        Args:
            service: Name of a reward service; `reward_services` lists them.
            items: Texts, pairs of text and reference, or `ScoreItem`s.
            wait_timeout_s: Maximum seconds to wait, with all retries; None means 600.
            options: Fields of the action, such as `task` and `priority`.

        Raises:
            Unavailable: The service failed or `wait_timeout_s` passed.
            ActionFailed: A separate action scored nothing, because of an infrastructure error for example.
            WaitTimeout: A separate action continues after `wait_timeout_s`.
        """
        return await self._run(_score(service, items, wait_timeout_s, self._retry_timeout_s, options))

    async def reward_services(self) -> list[RewardService]:
        """List the reward services that nodes offer."""
        return await self._run(_list_reward_services(self._retry_timeout_s))

    async def register_reward_service(
        self, name: str, *, kind: str, source: str, options: ServiceOptions | Mapping[str, Any] | None = None
    ) -> RewardService:
        """Register a model or an engine; every node that has its files serves it. Raises `Conflict`.

        Args:
            name: Name that `score` uses.
            kind: Kind of the service, such as `sequence-classifier` or `judge`.
            source: Directory below the nodes' model directory; for a judge, the name of its engine.
            options: Fields of `ServiceOptions`.
        """
        return await self._run(_register(_registration(name, kind, source, options), self._retry_timeout_s))

    async def change_reward_service(self, name: str, verb: ServiceOperation) -> RewardService:
        """Load, pin, unpin, drain or resume a service. Nodes apply the change at their next poll."""
        return await self._run(_change(name, verb, self._retry_timeout_s))

    async def unregister_reward_service(self, name: str) -> None:
        """Unregister a service. Raises `Conflict` while actions that name it have not settled."""
        await self._run(_unregister(name, self._retry_timeout_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _list_reward_services(retry_timeout_s: float) -> Operation[list[RewardService]]:
    call = SdkRequest(method="GET", path="/v1/reward-services")
    return RewardServiceListResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s))).items


def _score(
    service: str,
    items: Sequence[ScoreInput],
    wait_timeout_s: float | None,
    retry_timeout_s: float,
    options: ScoreOptions,
) -> Operation[list[Score]]:
    if wait_timeout_s is not None and not wait_timeout_s > 0:
        raise invalid_field("wait_timeout_s", f"must be more than 0, got {wait_timeout_s:g}")
    if isinstance(items, Sequence) and not isinstance(items, str | bytes) and len(items) > MAX_ITEMS:
        scoring = _score_in_parts(service, _normalize_items(items), retry_timeout_s, options)
        return (yield from with_timeout(scoring, MAX_SCORE_WAIT_S if wait_timeout_s is None else wait_timeout_s))
    action = score_action(service, items, **options)
    within_s = MAX_SCORE_WAIT_S if wait_timeout_s is None else wait_timeout_s
    if within_s > MAX_SCORE_WAIT_S or not options.keys() <= COALESCABLE_OPTIONS:
        waiting = run(action, timeout_s=within_s, retry_timeout_s=retry_timeout_s)
        return scores_of((yield from with_timeout(waiting, within_s)))
    body = ScoreRequest(service=service, items=action.items, within_s=within_s, **{"task": "score", **options})
    call = SdkRequest(method="POST", path="/v1/scores", body=body, timeout_s=within_s + RESPONSE_GRACE_S)
    return ScoreResponse.model_validate_json(
        (yield from with_timeout(call_with_retry(call, retry_timeout_s), within_s))
    ).scores


def _score_in_parts(
    service: str, items: Sequence[ScoreItem | Mapping[str, Any]], retry_timeout_s: float, options: ScoreOptions
) -> Operation[list[Score]]:
    """Score more items than an action takes, in several actions that run concurrently.

    If one of them fails, its items have the outcome as their error and the scores of the others are returned.
    """
    actions = [score_action(service, items[at : at + MAX_ITEMS], **options) for at in range(0, len(items), MAX_ITEMS)]
    try:
        ids = yield from submit_many(actions, retry_timeout_s=retry_timeout_s)
    except BatchRefused as refused:
        for id in refused.accepted.values():
            yield from cancel(id, retry_timeout_s=retry_timeout_s)
        raise refused.refused[min(refused.refused)] from None
    settled = yield from wait(ids, timeout_s=None, retry_timeout_s=retry_timeout_s)
    if all(action.masked for action in settled):
        raise ActionFailed(settled[0])
    return [
        score for wanted, action in zip(actions, settled, strict=True) for score in _scores_or_errors(wanted, action)
    ]


def _scores_or_errors(wanted: SubmitActionRequest, action: Action) -> list[Score]:
    try:
        return scores_of(action)
    except ActionFailed as failed:
        code = action.reason or str(action.outcome)
        return [Score(error=ItemError(code=code, message=str(failed)))] * len(wanted.items)


def _registration(
    name: str, kind: str, source: str, options: ServiceOptions | Mapping[str, Any] | None
) -> RegisterRewardServiceRequest:
    body = {"name": name, "kind": kind, "source": source, "options": options if options is not None else {}}
    return validate_request(RegisterRewardServiceRequest, body)


def _register(request: RegisterRewardServiceRequest, retry_timeout_s: float) -> Operation[RewardService]:
    call = SdkRequest(method="POST", path="/v1/reward-services", body=request)
    return RewardService.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def _change(name: str, verb: ServiceOperation, retry_timeout_s: float) -> Operation[RewardService]:
    call = SdkRequest(method="POST", path=f"/v1/reward-services/{quote(name, safe='')}/{ServiceOperation(verb)}")
    return RewardService.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def _unregister(name: str, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(
        SdkRequest(method="DELETE", path=f"/v1/reward-services/{quote(name, safe='')}"), retry_timeout_s
    )
