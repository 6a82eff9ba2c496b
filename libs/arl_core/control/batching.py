"""Batching of items from several actions on one device. There is no timer: a batch starts when the device is free.

Costs and lengths are in tokens.
"""

from collections import deque
from collections.abc import Sequence

__all__ = ["length_buckets", "next_batch", "next_budget", "padding_share"]

MAX_BUDGET_GROWTH = 2
"""Largest growth factor of a budget after one batch; one cheap batch may say little about the next."""


def next_batch(queued_costs: Sequence[Sequence[int]], *, budget: int) -> list[int]:
    """Return how many items of each queued action go into the next batch, given the costs of their remaining items.

    Actions alternate item by item, so a one-item action does not wait behind one with hundreds. The batch costs at most
    `budget`, except that it always has one item. It is empty only if nothing is queued.
    """
    taken = [0] * len(queued_costs)
    turns = deque(range(len(queued_costs)))
    spent = 0
    while turns:
        action = turns.popleft()
        if taken[action] == len(queued_costs[action]):
            continue
        cost = queued_costs[action][taken[action]]
        if spent and spent + cost > budget:
            break
        spent += cost
        taken[action] += 1
        turns.append(action)
    return taken


def next_budget(budget: int, cost: int, run_time_s: float, *, target_s: float, min_budget: int, max_budget: int) -> int:
    """Return the budget of the next batch, chosen so that it takes about `target_s` and overhead stays small.

    `cost` and `run_time_s` describe a finished batch. A batch far below its budget predicts little about larger ones,
    because fixed costs dominate its time. If such a batch was too slow, that may be an exception, so the budget is only
    divided by `MAX_BUDGET_GROWTH`.
    """
    if MAX_BUDGET_GROWTH * cost < budget:
        wanted = budget / MAX_BUDGET_GROWTH if run_time_s > target_s else budget
    else:
        wanted = (
            min(MAX_BUDGET_GROWTH * budget, cost * target_s / run_time_s)
            if run_time_s > 0
            else MAX_BUDGET_GROWTH * budget
        )
    return int(max(min_budget, min(max_budget, wanted)))


def length_buckets(
    lengths: Sequence[int], *, max_tokens: int, max_padding: float = 0.15, pass_tokens: int = 0
) -> list[list[int]]:
    """Return buckets of text indices; the texts of a bucket are padded to one length.

    A bucket has at most `max_tokens` tokens including padding, or one text. Padding is at most the fraction
    `max_padding` of a bucket, or `pass_tokens`. `pass_tokens` is the number of tokens that could be computed in the
    fixed time of a pass.
    """
    found: list[list[int]] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda at: (lengths[at], at)):
        longest = max(1, lengths[index])
        if found:
            padded = longest * (len(found[-1]) + 1)
            if padded <= max_tokens and padded - tokens - longest <= max(max_padding * padded, pass_tokens):
                found[-1].append(index)
                tokens += longest
                continue
        found.append([index])
        tokens = longest
    return found


def padding_share(lengths: Sequence[int], buckets: Sequence[Sequence[int]]) -> float:
    """Return the fraction of padding in all computed tokens; 0 if there are none."""
    padded = sum(max(1, *(lengths[at] for at in group)) * len(group) for group in buckets)
    return 1 - sum(max(1, length) for length in lengths) / padded if padded else 0.0
