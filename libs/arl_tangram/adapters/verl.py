"""verl: a reward function that calls a reward service.

    reward.custom_reward_function.path=pkg://arl_tangram.adapters.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.service=math

verl awaits it for all samples concurrently, with the arguments of
`verl/experimental/reward_loop/reward_manager/naive.py`. verl cannot skip a reward: a sample without a score raises an
error, which fails the step. It never becomes a reward of 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from arl_tangram.adapters.sample_text import as_text, sanitize_text
from arl_tangram.async_client import AsyncTangram
from arl_wire.errors import NotScored
from arl_wire.scores import MAX_CHARACTERS, TEXT_ERROR_CODES, ScoreItem

__all__ = ["VerlRewardOptions", "compute_score"]

VERL_OPTIONS = frozenset({"reward_router_address", "reward_model_tokenizer"})
"""Options that verl passes in addition if it runs a reward model itself. They are ignored."""


@dataclass(frozen=True, kw_only=True)
class VerlRewardOptions:
    """The options in `reward_kwargs`.

    `compares`: send `ground_truth` as the reference, as verifiers, similarities and judges need it. A value that is
    not a string is compared as JSON. `prompt`, `trajectory`: the fields of `extra_info` with the prompt and with the
    name of the rollout. `unscored`: the reward of a text that cannot be scored because of its content, for example an
    empty one. `wait_timeout_s`: seconds for which infrastructure errors are retried.
    """

    service: str
    compares: bool = True
    prompt: str | None = None
    trajectory: str | None = None
    task: str = "verl"
    unscored: float | None = None
    wait_timeout_s: float = 600.0
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Score one sample. Return `score` and `unscored`.

    `unscored` is 1 if `score` is the configured reward of a text that cannot be scored, else 0. `options`: the fields
    of `VerlRewardOptions`. Raises `NotScored` if there is no score, and the error of a failed request.
    """
    del data_source
    chosen = VerlRewardOptions(**{name: value for name, value in options.items() if name not in VERL_OPTIONS})
    if len(solution_str) > MAX_CHARACTERS and chosen.unscored is not None:
        return {"score": chosen.unscored, "unscored": 1.0}
    item, trajectory = _build_item(chosen, solution_str, ground_truth, extra_info or {})
    [entry] = await _client(chosen.url, chosen.api_key).score(
        chosen.service, [item], task=chosen.task, trajectory=trajectory, wait_timeout_s=chosen.wait_timeout_s
    )
    if entry.score is not None:
        return {"score": entry.score, "unscored": 0.0}
    if entry.error is not None and entry.error.code in TEXT_ERROR_CODES and chosen.unscored is not None:
        return {"score": chosen.unscored, "unscored": 1.0}
    why = f"{entry.error.code}: {entry.error.message}" if entry.error is not None else "it gave no score"
    raise NotScored(f"{chosen.service}: {why}")


def _build_item(
    options: VerlRewardOptions, solution: str, ground_truth: Any, extra_info: Mapping[str, Any]
) -> tuple[ScoreItem, str | None]:
    """Return the item and the name of its rollout."""
    prompt = extra_info.get(options.prompt) if options.prompt is not None else None
    item = ScoreItem(
        text=sanitize_text(solution),
        reference=sanitize_text(as_text(ground_truth)) if options.compares and ground_truth is not None else None,
        prompt=sanitize_text(as_text(prompt)) if prompt is not None else None,
    )
    named = extra_info.get(options.trajectory) if options.trajectory is not None else None
    return item, str(named) if named is not None else None


@cache
def _client(url: str | None, api_key: str | None) -> AsyncTangram:
    """Return the client that all samples share. It keeps separate connections for each event loop."""
    return AsyncTangram(url, api_key)
