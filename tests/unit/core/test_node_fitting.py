"""On which node a score goes, where several offer its service."""

from collections import Counter
from dataclasses import replace

from arl_core.capacity.node_fitting import RESTORE_COST_ACTIONS, NodeFitter
from arl_core.domain.model import NodeResources, ResourceShape
from support.builders import a_class, a_pool, an_action

SLOT = "slots:minilm"
SCORE = a_class(9, shape=ResourceShape.QUOTA, **{SLOT: 1})


def a_gpu(node: int, *, at_hand: tuple[str, ...] = (SLOT,), accepting: bool = True, **taken: int) -> NodeResources:
    capacity = {SLOT: 64, "slots:quality": 64}
    free = {name: amount - taken.get(name.removeprefix("slots:"), 0) for name, amount in capacity.items()}
    pool = a_pool(node, shape=ResourceShape.QUOTA, free=free, accepting=accepting, **capacity)
    return replace(pool, warm_slots=frozenset(at_hand))


def nodes_of(pools: list[NodeResources], count: int) -> list[int | None]:
    free = NodeFitter.from_nodes({pool.node: pool for pool in pools})
    grants = [free.allocate(an_action(number, cls=SCORE), SCORE.demand.minimum) for number in range(count)]
    return [grant.node if grant is not None else None for grant in grants]


def test_scores_are_spread_and_not_packed() -> None:
    assert Counter(nodes_of([a_gpu(1), a_gpu(2), a_gpu(3)], 12)) == {1: 4, 2: 4, 3: 4}


def test_what_other_services_have_before_it_on_a_device_counts() -> None:
    assert nodes_of([a_gpu(1, quality=3), a_gpu(2, minilm=1)], 3) == [2, 2, 1]


def test_a_service_goes_to_another_node_once_more_wait_than_a_restore_is_worth() -> None:
    found = nodes_of([a_gpu(1, at_hand=()), a_gpu(2)], RESTORE_COST_ACTIONS + 2)
    assert found == [*[2] * RESTORE_COST_ACTIONS, 1, 2]


def test_what_a_round_spends_there_in_other_ways_counts_too() -> None:
    free = NodeFitter.from_nodes({node: a_gpu(node) for node in (1, 2)})
    score = SCORE.demand.minimum
    assert [grant.node for _ in range(2) if (grant := free.allocate(an_action(1, cls=SCORE), score))] == [1, 2]
    for _ in range(3):
        free.grant_on(1, an_action(2, cls=SCORE), score, needed=score)
    grants = [free.allocate(an_action(3, cls=SCORE), score) for _ in range(4)]
    assert [grant.node for grant in grants if grant] == [2, 2, 2, 1]


def test_a_node_without_a_free_slot_or_that_takes_nothing_new_gets_none() -> None:
    assert nodes_of([a_gpu(1, minilm=64), a_gpu(2, accepting=False)], 1) == [None]
    assert nodes_of([a_pool(1), a_gpu(2, minilm=63)], 2) == [2, None]
