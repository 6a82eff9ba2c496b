"""Test a system whose actions share cores by default (`TANGRAM_CPU_FORM=shared`)."""

import time
from collections.abc import Iterator

import pytest

from support.machine import Machine, a_machine

pytestmark = pytest.mark.slow

CORES = 2
BURN = "import time\nwhile time.process_time() < 1.0: pass"
SMALL = {"memory_mib": 64, "disk_mib": 8}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    variables = {"TANGRAM_CPU_FORM": "shared", "TANGRAM_CPU_CORES": str(CORES)}
    with a_machine(tmp_path_factory.mktemp("shared") / "state", **variables) as machine:
        yield machine


def test_sleeping_actions_in_all_slots_do_not_keep_another_one_from_starting(machine: Machine) -> None:
    with machine.client() as tangram:
        sleeping = [tangram.submit(task="t", argv=["sleep", "60"], **SMALL) for _ in range(2 * CORES)]
        began = time.monotonic()
        assert tangram.run(task="t", argv=["true"], **SMALL).ok
        assert time.monotonic() - began < 3.0
        for action in sleeping:
            tangram.cancel(action.id)
        assert {each.outcome for each in tangram.wait([action.id for action in sleeping])} == {"cancelled"}


def test_programs_that_wait_for_cores_end_in_their_timeout_and_report_both_times(machine: Machine) -> None:
    with machine.client() as tangram:
        programs = [{"source": BURN, "timeout_s": 5.0} for _ in range(8 * CORES)]
        actions = tangram.run_many(programs, task="t", **SMALL)
        assert {action.outcome for action in actions} == {"ok"}
        assert all(action.times.counted_s is not None for action in actions)
        assert max(action.times.counted_s or 0.0 for action in actions) < 2.0
        assert max(action.times.run_s or 0.0 for action in actions) > 1.5


def test_both_limits_are_named_in_the_reason_of_a_timeout(machine: Machine) -> None:
    with machine.client() as tangram:
        counted = tangram.run(task="t", argv=["sleep", "60"], timeout_s=0.5, **SMALL)
        wall = tangram.run(task="t", argv=["sleep", "60"], wall_timeout_s=0.5, **SMALL)
        assert [(each.outcome, each.reason) for each in (counted, wall)] == [
            ("user_timeout", "timeout_s"),
            ("user_timeout", "wall_timeout_s"),
        ]


def test_exclusive_action_has_a_core_that_shared_ones_do_not_use(machine: Machine) -> None:
    source = "import os, time; time.sleep({}); print(sorted(os.sched_getaffinity(0)))"
    with machine.client() as tangram:
        shared = tangram.submit(task="t", source=source.format(3), **SMALL)
        alone = tangram.run(task="t", source=source.format(0), cpu=1, exclusive=True, **SMALL)
        [ended] = tangram.wait([shared.id])
        assert len(alone.stdout.split(",")) == 1
        # The shared action sees the cores of its end: all of them, as the exclusive one has ended.
        assert len(ended.stdout.split(",")) == CORES


def test_submit_chooses_the_form_of_the_demand(machine: Machine) -> None:
    done = machine.cli("submit", "--exclusive", "--wall-timeout", "0.3", "--", "sleep", "60", check=False)
    assert (done.returncode, "user_timeout (wall_timeout_s)" in done.stderr) == (124, True)
    assert machine.cli("submit", "--shared", "--cpu", "0.5", "--", "true").returncode == 0
    refused = machine.cli("submit", "--shared", "--", "true", check=False)
    assert (refused.returncode, "--shared needs --cpu" in refused.stderr) == (2, True)
