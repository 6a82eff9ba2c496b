from dataclasses import dataclass, replace

from hypothesis import example, given
from hypothesis import strategies as st

from arl_core.domain.model import CpuSharing, Fence
from arl_cpu.node.allocations import AttemptAllocation, CoreTimeMeter, NodeAllocations, PendingResize
from support.builders import numbered
from support.sandbox import a_command

CORES = 6
MANY_CORES = 8
CROWDED = [
    ("start", 8, 3000),
    *(("start", number, milli) for number, milli in ((6, 100), (2, 500), (5, 100), (10, 100))),
    ("start", 4, 3000),
    ("end", 8, 0),
    ("begin", 4, 3000),
    ("begin", 2, 1000),
    ("start", 0, 3000),
]
"""Fractional actions use the cores of an action during its resize, and another action starts then."""


def an_attempt(cpu_milli: int, number: int = 1) -> AttemptAllocation:
    return AttemptAllocation(Fence(numbered(number), 1), {"cpu_milli": cpu_milli}, None)


def holdings_with(*attempts: AttemptAllocation, core_time: CoreTimeMeter | None = None) -> NodeAllocations:
    holdings = NodeAllocations({"cpu_milli": 1000 * CORES}, tuple(range(CORES)), core_time=core_time)
    for attempt in attempts:
        assert holdings.allocate(attempt)
        holdings.assign_cores(attempt)
    return holdings


def test_shared_cores_are_not_counted_but_memory_is() -> None:
    holdings = NodeAllocations({"cpu_milli": 1000, "memory_mib": 100}, (0,), shares_cores=True)
    amounts = {"cpu_milli": 1000, "memory_mib": 40}
    assert [holdings.allocate(AttemptAllocation(Fence(numbered(each), 1), amounts, None)) for each in range(3)] == [
        True,
        True,
        False,
    ]


class TestCoreSeconds:
    def test_core_seconds_follow_each_resize_and_end_with_the_release(self) -> None:
        now = [100.0]
        attempt = an_attempt(1000)
        holdings = holdings_with(attempt, core_time=CoreTimeMeter(lambda: now[0]))
        now[0] += 2.0
        grown = holdings.begin_resize(attempt, 4000)
        assert grown is not None
        holdings.finish_resize(grown, resize_seq=1)
        now[0] += 3.0
        larger = holdings.get(attempt.fence)
        assert larger is not None
        shrunk = holdings.begin_resize(larger, 500)
        assert shrunk is not None
        holdings.finish_resize(shrunk, resize_seq=2)
        now[0] += 10.0
        assert holdings.core_seconds(attempt.fence) == 2 * 1 + 3 * 4 + 10 * 0.5
        holdings.release(attempt.fence)
        assert holdings.core_seconds(attempt.fence) == 0

    def test_readopted_attempt_has_its_core_seconds_since_the_grant(self) -> None:
        now = [100.0]
        holdings = holdings_with(core_time=CoreTimeMeter(lambda: now[0]))
        holdings.readopt(attempt := an_attempt(2000), (0, 1), granted_ago_s=30.0)
        now[0] += 1.0
        assert holdings.core_seconds(attempt.fence) == 62.0


SHARING = CpuSharing(guarantee_milli=100)
"""Sharing of cores without a declared minimum."""


class TestSharedCores:
    def test_shared_attempt_has_all_cores_without_an_exclusive_attempt(self) -> None:
        holdings = holdings_with(an_attempt(2000))
        sharer = an_attempt(1000, number=2)
        assert holdings.allocate(sharer)
        assert holdings.assign_cores(sharer, SHARING) == (0, 1, 2, 3)
        holdings.release(an_attempt(2000).fence)
        assert holdings.shared_cores == tuple(range(CORES))
        holdings.release(sharer.fence)
        assert holdings.shared_cores is None

    def test_unused_cores_admit_more_attempts(self) -> None:
        holdings = holdings_with()
        for number in range(1, 13):
            sharer = an_attempt(500, number)
            assert holdings.allocate(sharer)
            holdings.assign_cores(sharer, SHARING)
        assert not holdings.allocate(an_attempt(1000, number=20))
        holdings.unused_milli = 1200
        assert holdings.allocate(an_attempt(1000, number=20))
        assert not holdings.allocate(an_attempt(1000, number=21))

    def test_report_of_attempts_that_have_ended_admits_nothing(self) -> None:
        holdings = holdings_with()
        sharer = an_attempt(500)
        assert holdings.allocate(sharer)
        holdings.assign_cores(sharer, SHARING)
        holdings.unused_milli = 400
        assert holdings.reclaimable_milli == 400
        holdings.release(sharer.fence)
        assert holdings.reclaimable_milli == 0

    def test_declared_minimum_is_never_reclaimed(self) -> None:
        holdings = holdings_with()
        sharer = an_attempt(500)
        assert holdings.allocate(sharer)
        holdings.assign_cores(sharer, CpuSharing(guarantee_milli=100, is_declared=True))
        holdings.unused_milli = 400
        assert holdings.reclaimable_milli == 0

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["share", "share", "start", "end", "unused"]),
                st.integers(0, 30),
                st.sampled_from([100, 500, 1000, 2000, 6000]),
            ),
            max_size=60,
        )
    )
    @example([("share", 1, 500), ("unused", 0, 6000), ("start", 2, 6000)])
    def test_shared_attempts_always_have_cores_for_their_guarantees(self, steps: list[tuple[str, int, int]]) -> None:
        holdings = holdings_with()
        owned: dict[int, int] = {}
        sharers: set[int] = set()
        for step, number, cpu_milli in steps:
            attempt = an_attempt(cpu_milli, number)
            if step == "unused":
                holdings.unused_milli = 5 * cpu_milli
            elif step == "end":
                holdings.release(attempt.fence)
                owned.pop(number, None)
                sharers.discard(number)
            elif number not in owned | dict.fromkeys(sharers) and holdings.allocate(attempt):
                if step == "share":
                    holdings.assign_cores(attempt, SHARING)
                    sharers.add(number)
                else:
                    owned[number] = len(_own(holdings.assign_cores(attempt), cpu_milli))
            if sharers:
                assert holdings.shared_cores is not None
                assert len(holdings.shared_cores) == CORES - sum(owned.values())
                assert 1000 * len(holdings.shared_cores) >= 100 * len(sharers)


class TestResize:
    def test_shrink_frees_cores_only_after_confirmation(self) -> None:
        attempt = an_attempt(6000)
        holdings = holdings_with(attempt)
        change = holdings.begin_resize(attempt, 1000)
        assert change is not None
        assert holdings.available["cpu_milli"] == 0
        holdings.finish_resize(change, resize_seq=1)
        assert holdings.available["cpu_milli"] == 5000

    def test_growth_allocates_cores_before_confirmation(self) -> None:
        attempt = an_attempt(1000)
        holdings = holdings_with(attempt)
        change = holdings.begin_resize(attempt, 4000)
        assert change is not None
        assert holdings.available["cpu_milli"] == 2000
        holdings.undo_resize(change)
        assert holdings.available["cpu_milli"] == 5000

    def test_growth_beyond_free_cores_is_refused_without_effect(self) -> None:
        attempt = an_attempt(1000)
        holdings = holdings_with(attempt, an_attempt(4000, number=2))
        assert holdings.begin_resize(attempt, 2001) is None
        assert holdings.available["cpu_milli"] == 1000

    def test_attempt_ended_during_resize_releases_all_cores(self) -> None:
        attempt = an_attempt(1000)
        holdings = holdings_with(attempt)
        change = holdings.begin_resize(attempt, 2000)
        assert change is not None
        holdings.release(attempt.fence)
        holdings.finish_resize(change, resize_seq=1)
        assert holdings.available["cpu_milli"] == 6000

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["start", "end", "begin", "finish", "undo"]),
                st.integers(0, 11),
                st.sampled_from([100, 200, 500, 1000, 1500, 2000, 3000, 6000]),
            ),
            max_size=60,
        )
    )
    @example(CROWDED)
    def test_whole_cores_are_never_shared_even_during_resize(self, steps: list[tuple[str, int, int]]) -> None:
        node = _Node(NodeAllocations({"cpu_milli": 1000 * MANY_CORES}, tuple(range(MANY_CORES))))
        for step, number, cpu_milli in steps:
            node.do(step, number, cpu_milli)
            owned = [core for cores in node.owned.values() for core in cores]
            assert len(owned) == len(set(owned))
            assert node.holdings.available["cpu_milli"] >= 0


@dataclass
class _Node:
    """Node allocations plus the cores that an executor may use; during a resize, both old and new ones."""

    holdings: NodeAllocations

    def __post_init__(self) -> None:
        self.owned: dict[int, set[int]] = {}
        self._changes: dict[int, PendingResize] = {}

    def do(self, step: str, number: int, cpu_milli: int) -> None:
        attempt = self.holdings.get(an_attempt(0, number).fence)
        if step == "start" and attempt is None:
            attempt = an_attempt(cpu_milli, number)
            if self.holdings.allocate(attempt):
                self.owned[number] = _own(self.holdings.assign_cores(attempt), cpu_milli)
        elif step == "end" and attempt is not None:
            self.holdings.release(attempt.fence)
            del self.owned[number]
            self._changes.pop(number, None)
        elif step == "begin" and attempt is not None and number not in self._changes:
            change = self.holdings.begin_resize(attempt, cpu_milli)
            if change is not None:
                self._changes[number] = change
                self.owned[number] |= _own(change.cores, change.cpu_milli)
        elif step == "finish" and number in self._changes:
            change = self._changes.pop(number)
            self.holdings.finish_resize(change, resize_seq=1)
            self.owned[number] = _own(change.cores, change.cpu_milli)
        elif step == "undo" and number in self._changes:
            change = self._changes.pop(number)
            self.holdings.undo_resize(change)
            self.owned[number] = _own(change.previous_cores, change.previous.cpu_milli)


def _own(cores: tuple[int, ...], cpu_milli: int) -> set[int]:
    if cpu_milli % 1000:
        return set()
    assert len(cores) * 1000 == cpu_milli
    return set(cores)


class TestCritical:
    def test_change_before_the_start_is_in_the_specification(self) -> None:
        attempt, unknown = an_attempt(1000), Fence(numbered(9), 1)
        holdings = holdings_with(attempt)
        spec = replace(a_command("true"), fence=attempt.fence)
        assert holdings.with_critical(spec) is spec
        assert holdings.set_critical({attempt.fence: True, unknown: True}) == {attempt.fence: True}
        assert holdings.with_critical(spec).is_critical
        assert holdings.set_critical({attempt.fence: False}) == {attempt.fence: False}
        assert not holdings.with_critical(spec).is_critical
