"""Which items of which actions go to the device together. There is no timer: a batch leaves when the device is free.

Costs and lengths are in tokens.
"""

from collections import deque
from collections.abc import Sequence

__all__ = ["length_buckets", "next_batch", "next_budget", "padding_share"]

MAX_BUDGET_GROWTH = 2
"""How many times as large a budget is after one batch at most: what is learnt of a cheap one may be wrong of others."""


def next_batch(queued_costs: Sequence[Sequence[int]], *, budget: int) -> list[int]:
    """How many items of each waiting action go next, given the costs of those that it still has.

    In turns, so that an action of one item is not behind all of one with hundreds. Never above `budget`, except
    that there is always one item; never an empty batch while anything waits.
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
    """Of the next batch, so that it takes about `wanted_s`: what is said around a batch is then little beside it.

    `cost` and `took_s`: of a batch that was computed. One that was far below its budget says little of larger ones,
    since what each batch takes, whatever is in it, is most of its time; too long, that may have been this once.
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
    """Indices of texts that are padded to one length together; short ones never to that of much longer ones.

    A bucket has at most `max_tokens` with its padding, or one text. At most the share `max_padding` of it is padding,
    or `pass_tokens`: as many as could be computed in the time that a pass takes whatever is in it.
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
    """The share of padding in all tokens that are computed; 0 where there are none."""
    padded = sum(max(1, *(lengths[at] for at in group)) * len(group) for group in buckets)
    return 1 - sum(max(1, length) for length in lengths) / padded if padded else 0.0
