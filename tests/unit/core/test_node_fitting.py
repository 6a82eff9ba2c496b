"""Node selection for scores when several nodes offer the reward service."""

from collections import Counter
from dataclasses import replace

from arl_core.capacity.node_fitting import RESTORE_COST_ACTIONS, NodeFitter
from arl_core.domain.model import ActionClass, CpuSharing, NodeResources, ResourceShape
from support.builders import a_class, a_pool, an_action

SLOT = "slots:minilm"
SCORE = a_class(9, shape=ResourceShape.QUOTA, **{SLOT: 1})


SHARED = replace(a_class(8, cpu_milli=500), sharing=CpuSharing(guarantee_milli=100))


def a_gpu(node: int, *, at_hand: tuple[str, ...] = (SLOT,), accepting: bool = True, **taken: int) -> NodeResources:
    capacity = {SLOT: 64, "slots:quality": 64}
    free = {name: amount - taken.get(name.removeprefix("slots:"), 0) for name, amount in capacity.items()}
    pool = a_pool(node, shape=ResourceShape.QUOTA, free=free, accepting=accepting, **capacity)
    return replace(pool, warm_slots=frozenset(at_hand))


def nodes_of(pools: list[NodeResources], count: int) -> list[int | None]:
    free = NodeFitter.from_nodes({pool.node: pool for pool in pools})
    grants = [free.allocate(an_action(number, cls=SCORE), SCORE.demand.minimum) for number in range(count)]
    return [grant.node if grant is not None else None for grant in grants]


def test_scores_are_spread_over_nodes() -> None:
    assert Counter(nodes_of([a_gpu(1), a_gpu(2), a_gpu(3)], 12)) == {1: 4, 2: 4, 3: 4}


def test_load_of_other_services_on_node_counts() -> None:
    assert nodes_of([a_gpu(1, quality=3), a_gpu(2, minilm=1)], 3) == [2, 2, 1]


def test_score_goes_to_cold_node_once_queue_exceeds_restore_cost() -> None:
    found = nodes_of([a_gpu(1, at_hand=()), a_gpu(2)], RESTORE_COST_ACTIONS + 2)
    assert found == [*[2] * RESTORE_COST_ACTIONS, 1, 2]


def test_other_grants_of_round_count_towards_node_load() -> None:
    free = NodeFitter.from_nodes({node: a_gpu(node) for node in (1, 2)})
    score = SCORE.demand.minimum
    assert [grant.node for _ in range(2) if (grant := free.allocate(an_action(1, cls=SCORE), score))] == [1, 2]
    for _ in range(3):
        free.grant_on(1, an_action(2, cls=SCORE), score, needed=score)
    grants = [free.allocate(an_action(3, cls=SCORE), score) for _ in range(4)]
    assert [grant.node for grant in grants if grant] == [2, 2, 2, 1]


def test_full_or_unschedulable_node_gets_no_scores() -> None:
    assert nodes_of([a_gpu(1, minilm=64), a_gpu(2, accepting=False)], 1) == [None]
    assert nodes_of([a_pool(1), a_gpu(2, minilm=63)], 2) == [2, None]


def test_shared_cores_are_spread_and_exclusive_cores_are_packed() -> None:
    def nodes_for(cls: ActionClass) -> list[int | None]:
        free = NodeFitter.from_nodes({node: a_pool(node, cpu_milli=4000) for node in (1, 2, 3)})
        grants = [free.allocate(an_action(number, cls=cls), cls.demand.minimum) for number in range(6)]
        return [grant.node if grant is not None else None for grant in grants]

    assert Counter(nodes_for(SHARED)) == {1: 2, 2: 2, 3: 2}
    assert Counter(nodes_for(replace(SHARED, sharing=None))) == {1: 6}
