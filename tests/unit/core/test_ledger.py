from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arl_core.capacity.ledger import ResourceLedger, fits

CAPACITY = {"cpu_milli": 4000, "memory_mib": 100}
amounts = st.fixed_dictionaries({"cpu_milli": st.integers(0, 4000), "memory_mib": st.integers(0, 100)})


class ResourceLedgerMachine(RuleBasedStateMachine):
    """State machine: allocations checked with `fits` never exceed the capacity and count once."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ResourceLedger()
        self.ledger.set_capacity(1, CAPACITY)
        self.model: dict[int, dict[str, int]] = {}

    @rule(holder=st.integers(0, 5), wanted=amounts)
    def allocate_if_it_fits(self, holder: int, wanted: dict[str, int]) -> None:
        if holder not in self.model and fits(wanted, self.ledger.available(1)):
            self.ledger.allocate(holder, 1, wanted)
            self.model[holder] = wanted

    @rule(holder=st.integers(0, 5))
    def release(self, holder: int) -> None:
        assert self.ledger.release(holder) == (holder in self.model)
        self.model.pop(holder, None)

    @invariant()
    def available_plus_allocated_is_capacity(self) -> None:
        for resource, total in CAPACITY.items():
            held = sum(entry[resource] for entry in self.model.values())
            assert self.ledger.available(1)[resource] == total - held >= 0


TestLedger = ResourceLedgerMachine.TestCase


@given(amounts)
def test_repeated_allocation_of_same_holder_counts_once(wanted: dict[str, int]) -> None:
    ledger = ResourceLedger()
    ledger.set_capacity(1, CAPACITY)
    ledger.allocate("a", 1, wanted)
    ledger.allocate("a", 1, wanted)
    ledger.release("a")
    assert ledger.available(1) == CAPACITY


class Numbered(int):
    """A node number that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Numbered.compared += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


class TestSetCapacity:
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), amounts)), st.integers(0, 4000))
    def test_new_capacity_subtracts_existing_allocations(
        self, takes: list[tuple[int, int, dict[str, int]]], cores: int
    ) -> None:
        ledger, held = ResourceLedger(), dict[int, tuple[int, dict[str, int]]]()
        for holder, node, wanted in takes:
            ledger.allocate(holder, node, wanted)
            held[holder] = (node, wanted)
        for node in (1, 2, 3):
            ledger.set_capacity(node, {"cpu_milli": cores})
            used = sum(wanted["cpu_milli"] for at, wanted in held.values() if at == node)
            assert ledger.available(node) == {"cpu_milli": cores - used}

    def test_set_capacity_does_not_scan_allocations_of_other_nodes(self) -> None:
        ledger, nodes = ResourceLedger(), [Numbered(number) for number in range(60)]
        for holder in range(1000):
            ledger.allocate(holder, nodes[holder % 10], {"cpu_milli": 1})
        before = Numbered.compared
        for node in nodes:
            ledger.set_capacity(node, CAPACITY)
        assert Numbered.compared - before <= 10 * len(nodes)
        assert ledger.available(nodes[3])["cpu_milli"] == CAPACITY["cpu_milli"] - 100


def test_missing_resource_counts_as_zero() -> None:
    assert not fits({"gpu": 1}, {"cpu_milli": 1000})
    assert fits({"gpu": 0}, {"cpu_milli": 1000})


def test_negative_available_resource_fits_only_zero_demand() -> None:
    assert fits({"cpu_milli": 1000, "gpu": 0}, {"cpu_milli": 1000, "gpu": -1})
    assert not fits({"cpu_milli": 1000}, {"cpu_milli": -1000})
