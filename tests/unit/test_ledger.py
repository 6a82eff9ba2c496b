from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from arl_core.ledger import Ledger, fits

CAPACITY = {"cpu_milli": 4000, "memory_mib": 100}
amounts = st.fixed_dictionaries({"cpu_milli": st.integers(0, 4000), "memory_mib": st.integers(0, 100)})


class HeldIsNeverMoreThanCapacity(RuleBasedStateMachine):
    """Whoever asks `fits` before taking can never overbook, and nothing is counted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.ledger.set_capacity(1, CAPACITY)
        self.model: dict[int, dict[str, int]] = {}

    @rule(holder=st.integers(0, 5), wanted=amounts)
    def take_if_it_fits(self, holder: int, wanted: dict[str, int]) -> None:
        if holder not in self.model and fits(wanted, self.ledger.free(1)):
            self.ledger.take(holder, 1, wanted)
            self.model[holder] = wanted

    @rule(holder=st.integers(0, 5))
    def release(self, holder: int) -> None:
        assert self.ledger.release(holder) == (holder in self.model)
        self.model.pop(holder, None)

    @invariant()
    def free_plus_held_is_capacity(self) -> None:
        for resource, total in CAPACITY.items():
            held = sum(entry[resource] for entry in self.model.values())
            assert self.ledger.free(1)[resource] == total - held >= 0


TestLedger = HeldIsNeverMoreThanCapacity.TestCase


@given(amounts)
def test_taking_twice_holds_once(wanted: dict[str, int]) -> None:
    ledger = Ledger()
    ledger.set_capacity(1, CAPACITY)
    ledger.take("a", 1, wanted)
    ledger.take("a", 1, wanted)
    ledger.release("a")
    assert ledger.free(1) == CAPACITY


def test_a_resource_that_a_node_lacks_is_none_of_it() -> None:
    assert not fits({"gpu": 1}, {"cpu_milli": 1000})
    assert fits({"gpu": 0}, {"cpu_milli": 1000})
