"""TRL: a reward function for `GRPOTrainer(reward_funcs=[…])` that calls a reward service.

TRL calls it once for all samples of a step. `prompts` and `completions` are strings or conversations, and every column
of the dataset is a keyword argument (huggingface/trl, `docs/source/grpo_trainer.md`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, TypedDict, Unpack

from pydantic import ValidationError

from arl_tangram.adapters.sample_text import (
    TextOrMessages,
    as_text,
    join_messages,
    last_assistant_message,
    message_text,
    sanitize_text,
)
from arl_tangram.async_client import AsyncTangram
from arl_tangram.operations import ActionFailed, WaitTimeout
from arl_wire.errors import Internal, NotScored, Unavailable
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, TEXT_ERROR_CODES, PromptMessage, Score, ScoreItem

__all__ = ["TangramReward"]

log = logging.getLogger(__name__)

PromptMode = bool | Literal["apart", "messages"]
SETUP_ERROR_CODES = frozenset({"verifier_missing", "incomplete_model"})
"""Codes of errors that are the same for every completion and that a retry cannot fix."""
INFRASTRUCTURE_ERRORS = (Unavailable, Internal, ActionFailed, WaitTimeout)


class RewardOptions(TypedDict, total=False):
    """Keyword arguments of `TangramReward`, which documents them."""

    reference: str | None
    with_prompt: PromptMode
    task: str
    trajectory: str | None
    url: str | None
    api_key: str | None
    wait_timeout_s: float
    unscored: float | None
    on_trouble: Literal["none", "raise"]


class TangramReward(partial[Any]):
    """A TRL reward function that returns a service's score for each completion, or None if there is no score.

    `reference`: the column with the value that a completion is compared with, as `similarity` and verifiers need it. A
    value that is not a string is compared as JSON. The scored text of a conversation is the last message of the
    assistant; output of tools is not part of it. `with_prompt`: if True, prompt and completion are one text with all
    messages. `"apart"` sends the prompt separately from the answer, as a judge needs it. `"messages"` sends both as
    one conversation with roles, to which a classifier applies its template. `trajectory`: the column with the
    rollout's name.

    `unscored`: the reward of a text that cannot be scored because of its content, for example an empty one; None by
    default. The reward is also None if the reference is None, or if an infrastructure error lasts longer than
    `wait_timeout_s` and `on_trouble` is not `"raise"`. The number of completions without a score is logged with the
    reasons. A missing service, a missing column or a service that can score nothing raises an error at once.

    A subclass of `partial`: trainers before TRL 1.14 test whether a reward function is a coroutine function, and a
    partial of a coroutine function passes this test. It can be pickled.
    """

    __name__: str
    """The name under which TRL logs the reward."""

    scorer: "_RewardScorer"

    def __new__(cls, service: str, **options: Unpack[RewardOptions]) -> Self:
        asking = _RewardScorer(service=service, **options)

        async def rewards(
            prompts: Sequence[TextOrMessages], completions: Sequence[TextOrMessages], **columns: Any
        ) -> list[float | None]:
            return await asking.compute_rewards(prompts, completions, columns)

        # Depending on its version, TRL reads the name from the partial or from its function.
        reward = super().__new__(cls, rewards)
        reward.__name__ = rewards.__name__ = f"tangram_{service}"
        reward.scorer = asking
        return reward

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_reward, (type(self), vars(self.scorer))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scorer})"


def _rebuild_reward(cls: type[TangramReward], options: dict[str, Any]) -> TangramReward:
    return cls(**options)


@dataclass(frozen=True, kw_only=True)
class _RewardScorer:
    service: str
    reference: str | None = None
    with_prompt: PromptMode = False
    task: str = "trl"
    trajectory: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    wait_timeout_s: float = 300.0
    unscored: float | None = None
    on_trouble: Literal["none", "raise"] = "none"

    async def compute_rewards(
        self, prompts: Sequence[TextOrMessages], completions: Sequence[TextOrMessages], columns: Mapping[str, Any]
    ) -> list[float | None]:
        references, names = _get_column(columns, self.reference), _get_column(columns, self.trajectory)
        without: Counter[str] = Counter()
        items = [
            self._build_item(prompt, completion, references, at)
            for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        step = getattr(columns.get("trainer_state"), "global_step", None)
        asked = [item if isinstance(item, ScoreItem) else None for item in items]
        groups = _group_by_trajectory(asked, names)
        async with AsyncTangram(self.url, self.api_key) as client:
            parts = await asyncio.gather(*(self._score_group(client, asked, at, name, step) for name, at in groups))
        said: list[Score | str] = [item if isinstance(item, str) else "" for item in items]
        for (_, at), scores in zip(groups, parts, strict=True):
            for place, score in zip(at, scores, strict=True):
                said[place] = score
        found = [self._to_reward(each, without) for each in said]
        if without:
            reasons = ", ".join(f"{reason} {count}" for reason, count in without.most_common())
            log.warning(
                "%s: %d of %d completions have no score: %s", self.service, without.total(), len(found), reasons
            )
        return found

    def _to_reward(self, entry: "Score | str", missing: Counter[str]) -> float | None:
        """Convert a score or an error code to a reward. Raises `NotScored` for errors that concern every completion."""
        if isinstance(entry, Score) and entry.score is not None:
            return entry.score
        error = entry.error if isinstance(entry, Score) else None
        code = entry if isinstance(entry, str) else error.code if error is not None else "no_score"
        if code in SETUP_ERROR_CODES:
            raise NotScored(f"{self.service} scores nothing: {code}: {error.message if error is not None else ''}")
        missing[code] += 1
        return self.unscored if code in TEXT_ERROR_CODES else None

    def _build_item(
        self, prompt: TextOrMessages, completion: TextOrMessages, references: Sequence[Any] | None, index: int
    ) -> ScoreItem | str:
        """Return the item, or an error code if none can be built."""
        reference = None
        if references is not None:
            if references[index] is None:
                return "no_reference"
            reference = sanitize_text(as_text(references[index]))
        said = self._item_fields(prompt, completion)
        try:
            item = ScoreItem(reference=reference, **said)
        except ValidationError:
            return "too_long" if len(said.get("text", "")) > MAX_CHARACTERS else "unfit"
        if item.characters <= MAX_CHARACTERS:
            return item
        own = len(item.text or "")
        return "too_long" if 2 * own > item.characters else "unfit"

    def _item_fields(self, prompt: TextOrMessages, completion: TextOrMessages) -> dict[str, Any]:
        if self.with_prompt == "messages":
            return {"messages": [*_to_messages(prompt, "user"), *_to_messages(completion, "assistant")]}
        if self.with_prompt is True:
            return {"text": join_messages(prompt) + join_messages(completion)}
        apart = {"prompt": join_messages(prompt)} if self.with_prompt == "apart" else {}
        return {"text": last_assistant_message(completion), **apart}

    async def _score_group(
        self,
        client: AsyncTangram,
        items: Sequence[ScoreItem | None],
        indices: Sequence[int],
        name: str | None,
        step: int | None,
    ) -> "Sequence[Score | str]":
        """Return the scores of one group, or the error code for each item if the request failed."""
        about: dict[str, Any] = {"task": self.task, "step": step, "trajectory": name}
        known = {field: value for field, value in about.items() if value is not None}
        wanted = [item for place in indices if (item := items[place]) is not None]
        try:
            return await client.score(self.service, wanted, wait_timeout_s=self.wait_timeout_s, **known)
        except INFRASTRUCTURE_ERRORS as error:
            if self.on_trouble == "raise":
                raise
            return [getattr(error, "code", type(error).__name__)] * len(wanted)


def _group_by_trajectory(
    items: Sequence[ScoreItem | None], names: Sequence[Any] | None
) -> list[tuple[str | None, list[int]]]:
    """Group item indices by rollout. A group has at most the items and characters that one call allows."""
    groups: list[tuple[str | None, list[int]]] = []
    open_: dict[str | None, tuple[list[int], int]] = {}
    for at, item in enumerate(items):
        if item is None:
            continue
        name = str(names[at]) if names is not None and names[at] is not None else None
        places, characters = open_.get(name, ([], MAX_CHARACTERS))
        if not places or len(places) == MAX_ITEMS or characters + item.characters > MAX_CHARACTERS:
            places, characters = [], 0
            groups.append((name, places))
        places.append(at)
        open_[name] = places, characters + item.characters
    return groups


def _get_column(columns: Mapping[str, Any], name: str | None) -> Sequence[Any] | None:
    if name is None:
        return None
    if name not in columns:
        raise ValueError(f"column {name!r} does not exist. Available: {', '.join(sorted(columns)) or 'none'}")
    found: Sequence[Any] = columns[name]
    return found


def _to_messages(conversation: TextOrMessages, role: str) -> list[PromptMessage]:
    if isinstance(conversation, str):
        return [PromptMessage(role=role, content=sanitize_text(conversation))]
    return [
        PromptMessage(role=turn.get("role", role), content=message_text(turn.get("content"))) for turn in conversation
    ]
