"""Test the state of an attempt that shares cores, with a processor time that the test gives."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from arl_core.domain.model import CpuSharing
from arl_cpu.launcher.cpu_sharing.environment_cpu import MAX_TASKS, CgroupCpu, task_sample
from arl_cpu.launcher.cpu_sharing.shared_attempt import SharedAttempt
from arl_cpu.launcher.linux.cgroups import CgroupV2
from support.sandbox import a_command, shared


@dataclass
class Cpu:
    """The processor time of an environment. Each sample finds what the test set before."""

    sample_interval_s: float = 0.1
    first_cpu_us: int = 0
    used_s: float = 0.0
    runnable: bool = False
    weights: list[int] = field(default_factory=list)

    def cpu_us(self) -> int:
        return round(self.used_s * 1e6)

    def is_runnable(self) -> bool:
        return self.runnable

    def set_weight(self, weight: int, *, largest: int) -> None:
        del largest
        self.weights.append(weight)


class Run:
    """An attempt that starts at 0 s and is sampled ten times a second."""

    def __init__(self, *, declared: bool = False) -> None:
        self.cpu, self.now = Cpu(), 0.0
        sharing = CpuSharing(guarantee_milli=100, is_declared=declared)
        self.attempt = SharedAttempt(a_command("true", **shared()), sharing, self.cpu, now=0.0)
        self.timeouts = 0

    def limit(self, limit_s: float) -> None:
        self.attempt.limit(limit_s, self._timeout, now=self.now)

    def go(self, seconds: float, *, use: float = 0.0, runnable: bool = False) -> None:
        """Let time pass in which the attempt uses this part of a core."""
        self.cpu.runnable = runnable
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.cpu.used_s += 0.1 * use
            self.attempt.sample(self.now)

    def counted_s(self) -> float:
        return self.attempt.end(self.cpu.cpu_us(), now=self.now) / 1e6

    def _timeout(self) -> None:
        self.timeouts += 1


class TestCountedTime:
    def test_attempt_that_waits_for_a_core_does_not_reach_its_limit(self) -> None:
        run = Run()
        run.limit(1.0)
        run.go(9.0, use=0.1, runnable=True)
        assert (run.timeouts, run.counted_s()) == (0, pytest.approx(0.9))

    @pytest.mark.parametrize(("use", "runnable"), [(1.0, True), (0.0, False)])
    def test_attempt_that_spins_or_sleeps_reaches_its_limit_once(self, use: float, runnable: bool) -> None:
        run = Run()
        run.limit(1.0)
        run.go(0.9, use=use, runnable=runnable)
        assert run.timeouts == 0
        run.go(0.5, use=use, runnable=runnable)
        assert run.timeouts == 1

    def test_time_before_the_first_step_does_not_count_for_the_limit(self) -> None:
        run = Run()
        run.go(3.0)
        run.limit(1.0)
        run.go(0.9)
        assert run.timeouts == 0

    def test_short_attempt_without_a_sample_counts_its_real_time(self) -> None:
        run = Run()
        run.now = 0.08
        assert run.counted_s() == pytest.approx(0.08)


class TestSamples:
    def test_samples_become_rare_after_five_seconds_of_sleep_and_frequent_on_waking(self) -> None:
        run = Run()
        run.go(4.9)
        assert run.attempt.due_at() - run.now < 0.11
        run.go(0.2)
        assert run.attempt.due_at() - run.now > 0.3
        run.go(0.1, use=0.5, runnable=True)
        assert run.attempt.due_at() - run.now < 0.11

    def test_sample_near_the_limit_is_due_when_the_limit_can_be_reached(self) -> None:
        run = Run()
        run.limit(6.33)
        run.go(6.2)
        assert run.attempt.due_at() == pytest.approx(6.33)

    def test_sample_has_at_most_sixteen_tasks_and_all_tasks_get_their_turn(self) -> None:
        tasks = list(range(200))
        samples = [task_sample(tasks, number) for number in range(13)]
        assert max(map(len, samples)) == MAX_TASKS
        assert {task for sample in samples for task in sample} == set(tasks)
        assert task_sample(tasks[:3], 7) == [0, 1, 2]


class TestUnusedCores:
    def test_sleeping_attempt_keeps_only_its_guarantee_after_a_second(self) -> None:
        run = Run()
        run.go(0.8)
        assert run.attempt.unused_milli() == 0
        run.go(0.4)
        assert run.attempt.unused_milli() == 400

    def test_attempt_that_waits_for_a_core_leaves_nothing(self) -> None:
        """It gets little because of the others. More actions beside it would slow all of them down."""
        run = Run()
        run.go(3.0, use=0.05, runnable=True)
        assert run.attempt.unused_milli() == 0

    def test_use_above_the_guarantee_is_kept(self) -> None:
        run = Run()
        run.go(3.0, use=0.3)
        assert run.attempt.unused_milli() == pytest.approx(200, abs=5)

    def test_declared_minimum_is_kept(self) -> None:
        run = Run(declared=True)
        run.go(3.0)
        assert run.attempt.unused_milli() == 0

    def test_attempt_that_wakes_up_wants_its_cores_again(self) -> None:
        run = Run()
        run.go(3.0)
        run.go(1.0, use=0.2, runnable=True)
        assert run.attempt.unused_milli() == 0


class TestWeights:
    def test_only_changes_are_written(self) -> None:
        run = Run()
        for weight in (1000, 1010, 1030):
            run.attempt.set_weight(weight, largest=1030, min_change=0.02)
        assert run.cpu.weights == [1000, 1030]

    def test_attempt_that_is_being_killed_has_no_part_in_the_weights(self) -> None:
        run = Run()
        run.attempt.speed_up_end(9999)
        assert (run.attempt.state, run.cpu.weights) == (None, [9999])


class ThreadedGroup:
    """The cgroup of this process, whose threads it counts."""

    def __init__(self, tasks: list[int]) -> None:
        self._tasks = tasks
        self.reads = 0

    def cpu_us(self) -> int:
        return 0

    def tasks(self) -> list[int]:
        self.reads += 1
        return self._tasks


def test_state_of_an_ended_thread_is_not_runnable() -> None:
    group = ThreadedGroup([1 << 30])
    cpu = CgroupCpu(group)  # type: ignore[arg-type]
    assert not cpu.is_runnable()
    assert group.reads == 1


def test_group_of_cgroup_v2_gets_weight_and_quota_only_where_they_change(tmp_path: Path) -> None:
    for name in ("cpu.max", "cpu.weight", "cpuset.cpus"):
        (tmp_path / name).write_text("")
    (tmp_path / "cpu.stat").write_text("usage_usec 1500\nuser_usec 1000\n")
    (tmp_path / "cgroup.threads").write_text("12\n345\n")
    group = CgroupV2(tmp_path)
    group.set_cpu(cpu_milli=None, cores=(1, 2))
    group.set_weight(100)
    written = {name: (tmp_path / name).read_text() for name in ("cpu.max", "cpu.weight", "cpuset.cpus")}
    assert written == {"cpu.max": "max 100000", "cpu.weight": "", "cpuset.cpus": "1,2"}
    group.set_weight(250)
    assert ((tmp_path / "cpu.weight").read_text(), group.cpu_us(), group.tasks()) == ("250", 1500, [12, 345])
