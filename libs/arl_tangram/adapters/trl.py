"""TRL: a reward function for `GRPOTrainer(reward_funcs=[…])` that asks a reward service.

TRL calls it with the samples of a step at once, `prompts` and `completions` as strings or conversations, and every
column of the dataset by its name (huggingface/trl, `docs/source/grpo_trainer.md`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from arl_tangram.client import AsyncTangram
from arl_tangram.operations import ActionFailed, WaitTimeout
from arl_wire.errors import Internal, Unavailable
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, ScoreItem

__all__ = ["TangramReward"]

Text = str | Sequence[Mapping[str, Any]]


class TangramReward:
    """The score of each completion by a service; None, which TRL leaves out of account, where there is none.

    `reference`: the column with what a completion is compared with, as `similarity` and verifiers need it.
    `with_prompt`: the prompt belongs to the text, as a classifier of whole samples needs it, or goes beside it
    (`"apart"`), as a judge takes it. `trajectory`: the column that names the rollout. None is trouble of the services,
    and a text that can't be scored, as one with NUL or of more than 64 Ki characters; a service that can't be is an
    error, at once.
    """

    def __init__(
        self,
        service: str,
        *,
        reference: str | None = None,
        with_prompt: bool | Literal["apart"] = False,
        task: str = "trl",
        trajectory: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        wait_timeout_s: float = 300.0,
    ) -> None:
        self.__name__ = f"tangram_{service}"
        """Under which TRL logs it."""
        self._service, self._task = service, task
        self._reference, self._with_prompt, self._trajectory = reference, with_prompt, trajectory
        self._url, self._api_key, self._wait_timeout_s = url, api_key, wait_timeout_s

    async def __call__(
        self, prompts: Sequence[Text], completions: Sequence[Text], **columns: Any
    ) -> list[float | None]:
        items = [
            self._item(at, prompt, completion, columns)
            for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        step = getattr(columns.get("trainer_state"), "global_step", None)
        names = columns.get(self._trajectory) if self._trajectory is not None else None
        groups = _groups(items, names)
        async with AsyncTangram(self._url, self._api_key) as client:
            parts = await asyncio.gather(*(self._scored(client, items, at, name, step) for name, at in groups))
        found: list[float | None] = [None] * len(items)
        for (_, at), scores in zip(groups, parts, strict=True):
            for place, score in zip(at, scores, strict=True):
                found[place] = score
        return found

    def _item(self, at: int, prompt: Text, completion: Text, columns: Mapping[str, Any]) -> ScoreItem | None:
        asked, text = _text(prompt), _text(completion)
        if self._with_prompt is True:
            text = asked + text
        reference = None if self._reference is None else str(columns[self._reference][at])
        try:
            return ScoreItem(text=text, reference=reference, prompt=asked if self._with_prompt == "apart" else None)
        except ValidationError:
            return None

    async def _scored(
        self,
        client: AsyncTangram,
        items: Sequence[ScoreItem | None],
        at: Sequence[int],
        name: str | None,
        step: int | None,
    ) -> list[float | None]:
        about: dict[str, Any] = {"task": self._task, "step": step, "trajectory": name}
        known = {field: value for field, value in about.items() if value is not None}
        wanted = [item for place in at if (item := items[place]) is not None]
        try:
            scores = await client.score(self._service, wanted, wait_timeout_s=self._wait_timeout_s, **known)
        except (Unavailable, Internal, ActionFailed, WaitTimeout):
            return [None] * len(wanted)
        return [entry.score for entry in scores]


def _groups(items: Sequence[ScoreItem | None], names: Sequence[Any] | None) -> list[tuple[str | None, list[int]]]:
    """The places of the items of each rollout, as many as one call may have, in number and in characters."""
    groups: list[tuple[str | None, list[int]]] = []
    open_: dict[str | None, tuple[list[int], int]] = {}
    for at, item in enumerate(items):
        if item is None:
            continue
        name = str(names[at]) if names is not None else None
        places, characters = open_.get(name, ([], MAX_CHARACTERS))
        if not places or len(places) == MAX_ITEMS or characters + item.characters > MAX_CHARACTERS:
            places, characters = [], 0
            groups.append((name, places))
        places.append(at)
        open_[name] = places, characters + item.characters
    return groups


def _text(said: Text) -> str:
    if isinstance(said, str):
        return said
    return "\n".join(str(message.get("content") or "") for message in said)
