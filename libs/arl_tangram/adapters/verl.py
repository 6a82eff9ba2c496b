"""verl: a reward function that asks a reward service.

    reward.custom_reward_function.path=pkg://arl_tangram.adapters.verl
    reward.custom_reward_function.name=compute_score
    +reward.custom_reward_function.reward_kwargs.service=math

verl awaits it for each sample, all at once, with what `verl/experimental/reward_loop/reward_manager/naive.py` gives.
It knows no reward that is left out: what has no score is an error, of which the step dies, and never a 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from arl_tangram.adapters.sample_text import as_text, sanitize_text
from arl_tangram.client import AsyncTangram
from arl_wire.errors import NotScored
from arl_wire.scores import MAX_CHARACTERS, TEXT_ERROR_CODES, ScoreItem

__all__ = ["VerlRewardOptions", "compute_score"]

VERL_OPTIONS = frozenset({"reward_router_address", "reward_model_tokenizer"})
"""What it gives besides where it runs a reward model of its own."""


@dataclass(frozen=True, kw_only=True)
class VerlRewardOptions:
    """`reward_kwargs`.

    `compares`: with `ground_truth`, as verifiers, similarities and judges want it; what is no text is compared as JSON.
    `prompt`, `trajectory`: fields of `extra_info` that have what was asked, and the name of the rollout. `unscored`:
    the reward of a text whose own fault it is that it has no score, as an empty one. So long as `wait_timeout_s`
    trouble is ridden out.
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
    """`score`, and `unscored`: 1 where that is the number that was chosen for a text that cannot be scored, else 0.

    `options`: those of `Options`. Raises `NotScored`, and what the trouble was.
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
    """The item, and the name of its rollout."""
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
    """One for all samples, whose connections are those of the event loop that asks."""
    return AsyncTangram(url, api_key)
