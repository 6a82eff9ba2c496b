"""Test that the names in the probe suite are consistent."""

from support.probe_differences import DOCUMENTED
from support.probe_suite import ALL_PROBES, GATE_NAMES, PROBES_BY_MODULE

NAMES = [probe.name for probe in ALL_PROBES]


def test_probe_names_are_unique() -> None:
    assert len(NAMES) == len(set(NAMES))


def test_documented_and_gate_probes_exist() -> None:
    assert {each.name for each in DOCUMENTED} | GATE_NAMES <= set(NAMES)


def test_gate_has_probes_of_most_modules() -> None:
    of_gate = {module for module, probes in PROBES_BY_MODULE.items() if GATE_NAMES & {each.name for each in probes}}
    assert len(of_gate) >= len(PROBES_BY_MODULE) - 1
