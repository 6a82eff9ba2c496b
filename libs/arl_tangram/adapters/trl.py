"""TRL: a reward function for `GRPOTrainer(reward_funcs=[…])` that asks a reward service.

TRL calls it with the samples of a step at once, `prompts` and `completions` as strings or conversations, and every
column of the dataset by its name (huggingface/trl, `docs/source/grpo_trainer.md`).
"""

import asyncio
import json
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

    `reference`: the column with what a completion is compared with, as `similarity` and verifiers need it; what is no
    text there is compared as JSON. `with_prompt`: the prompt belongs to the text, as a classifier of whole samples
    needs it, or goes beside it (`"apart"`), as a judge takes it. `trajectory`: the column that names the rollout. None
    is trouble of the services, a reference that is None, and what can't be scored, as a text with NUL or an item of
    more than 1 Mi characters; a service or a column that isn't there is an error, at once.
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
        references, names = _column(columns, self._reference), _column(columns, self._trajectory)
        items = [
            self._item(prompt, completion, references, at)
            for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        step = getattr(columns.get("trainer_state"), "global_step", None)
        groups = _groups(items, names)
        async with AsyncTangram(self._url, self._api_key) as client:
            parts = await asyncio.gather(*(self._scored(client, items, at, name, step) for name, at in groups))
        found: list[float | None] = [None] * len(items)
        for (_, at), scores in zip(groups, parts, strict=True):
            for place, score in zip(at, scores, strict=True):
                found[place] = score
        return found

    def _item(self, prompt: Text, completion: Text, references: Sequence[Any] | None, at: int) -> ScoreItem | None:
        asked, text = _text(prompt), _text(completion)
        if self._with_prompt is True:
            text = asked + text
        reference = None
        if references is not None:
            if references[at] is None:
                return None
            reference = _as_text(references[at])
        try:
            item = ScoreItem(text=text, reference=reference, prompt=asked if self._with_prompt == "apart" else None)
        except ValidationError:
            return None
        return item if item.characters <= MAX_CHARACTERS else None

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
        name = str(names[at]) if names is not None and names[at] is not None else None
        places, characters = open_.get(name, ([], MAX_CHARACTERS))
        if not places or len(places) == MAX_ITEMS or characters + item.characters > MAX_CHARACTERS:
            places, characters = [], 0
            groups.append((name, places))
        places.append(at)
        open_[name] = places, characters + item.characters
    return groups


def _column(columns: Mapping[str, Any], name: str | None) -> Sequence[Any] | None:
    if name is None:
        return None
    if name not in columns:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(sorted(columns)) or 'none'}")
    found: Sequence[Any] = columns[name]
    return found


def _as_text(value: Any) -> str:
    """A text as it is, and JSON of what has a form there."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Of an array, its numbers; of what JSON has no form for, what it is as a text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, dict | list | tuple | int | float) else str(value)


def _text(said: Text) -> str:
    if isinstance(said, str):
        return said
    return "\n".join(_content(message.get("content")) for message in said)


def _content(content: Any) -> str:
    """The text of a turn, which may be in parts; an image has none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else part.get("text") or "" for part in content)
