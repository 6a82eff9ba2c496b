from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import SchedulingPlan
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_sim.cluster import DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import ClassMeans, LearnedDurations, UniformDurations
from arl_sim.engine import START_S, SimOverheads, StuckError, WorkloadSimulation
from arl_sim.paper import ComparedPolicy, PaperHardware, average_statistics, run_steps
from arl_sim.results import SimResult, UsageSegment
from arl_sim.scheduler_state import OverbookedError
from arl_sim.sim_attempt import max_min_shares
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction
from arl_sim.workloads.published import PublishedWorkload, published_workload
from arl_sim.workloads.synthetic_step import SERVICES, synthetic_step
from support.builders import numbered

FCFS = FirstComeFirstServed()
POLICIES = (FCFS, StaticPods(4000), StaticPods(8000), ReferencePolicy(), SparPolicy(), SparPolicy(is_resizing=True))


def a_shell(seconds: float = 1.0) -> ActionWork:
    return ActionWork(cls="shell", resource_kind=ResourceKind.CPU, seconds=seconds)


def a_suite(seconds: float = 10.0) -> ActionWork:
    return ActionWork(
        cls="suite",
        resource_kind=ResourceKind.CPU,
        seconds=seconds,
        parallel_fraction=0.9,
        choices=(1, 2, 4, 8),
        fixed_units=4,
    )


def a_rollout(*turns: tuple[float, ActionWork], task: str = "ai-coding") -> SimTrajectory:
    return SimTrajectory(task, tuple(TrajectoryAction(think_s, work) for think_s, work in turns))


def simulated(
    rollouts: Sequence[SimTrajectory],
    policy: SchedulingPolicy = FCFS,
    *,
    cores: int = 8,
    asking: DemandMode = DemandMode.FIXED,
) -> SimResult:
    site = SimCluster(cpu_nodes=(cores,), gpu_nodes=(), api_calls=4)
    classes = SimActionClasses(site, {}, asking)
    return WorkloadSimulation(SimWorkload(tuple(rollouts)), site, policy, classes, ClassMeans()).run()


def a_score(service: str) -> ActionWork:
    degrees = {service.name: degrees for service, degrees in SERVICES}[service]
    return ActionWork(
        cls=service,
        resource_kind=ResourceKind.GPU,
        seconds=4.0,
        parallel_fraction=0.9,
        choices=degrees,
        fixed_units=1,
        service=service,
    )


def scored(rollouts: Sequence[SimTrajectory], policy: SchedulingPolicy, *, devices: int) -> SimResult:
    services = {service.name: service for service, _ in SERVICES}
    site = SimCluster(cpu_nodes=(), gpu_nodes=(devices,), api_calls=1)
    classes = SimActionClasses(site, services, DemandMode.ELASTIC)
    return WorkloadSimulation(SimWorkload(tuple(rollouts), services), site, policy, classes, ClassMeans()).run()


def most_at_once(pieces: Sequence[UsageSegment]) -> float:
    """Return the maximum units in use at one moment; touching segments do not overlap."""
    edges = sorted([(p.end, -p.units) for p in pieces] + [(p.start, p.units) for p in pieces])
    used = most = 0.0
    for _, change in edges:
        used += change
        most = max(most, used)
    return most


works = st.builds(a_shell, st.floats(0.05, 2.0)) | st.builds(a_suite, st.floats(1.0, 30.0))
turns = st.lists(st.tuples(st.floats(0.0, 5.0), works), min_size=1, max_size=4)
some_rollouts = st.lists(turns.map(lambda each: a_rollout(*each)), min_size=1, max_size=12)


class TestSimulation:
    def test_trajectory_alternates_thinking_and_actions(self) -> None:
        result = simulated([a_rollout((2.0, a_shell(1.0)), (3.0, a_shell(0.5)))])
        assert [(r.submitted, r.ended) for r in result.records] == [
            (2.0, pytest.approx(3.0 + START_S)),
            (pytest.approx(6.0 + START_S), pytest.approx(6.5 + 2 * START_S)),
        ]

    def test_action_on_several_cores_follows_amdahl(self) -> None:
        (record,) = simulated([a_rollout((0.0, a_suite(10.0)))]).records
        assert record.act_s == pytest.approx(START_S + 10.0 * (0.1 + 0.9 / 4))

    def test_action_waits_for_free_cores(self) -> None:
        result = simulated([a_rollout((0.0, a_suite(10.0))) for _ in range(3)], cores=8)
        assert sorted(record.started for record in result.records) == [0.0, 0.0, pytest.approx(3.27)]

    def test_static_pods_keep_their_cores_during_thinking(self) -> None:
        two = [a_rollout((5.0, a_shell(1.0)), (5.0, a_shell(1.0))) for _ in range(2)]
        records = simulated(two, StaticPods(8000)).records
        assert [(r.submitted, r.started) for r in records] == [(5.0, 5.0), (11.0, 11.0), (5.0, 12.0), (18.0, 18.0)]

    def test_overcommitted_pods_share_cores_of_their_node(self) -> None:
        two = [a_rollout((0.0, a_suite(8.0))) for _ in range(2)]
        (first, second) = simulated(two, StaticPods(8000, is_overcommitted=True), cores=8).records
        assert first.ended == second.ended == pytest.approx(8.0 * (0.1 + 0.9 / 4))

    def test_unlimited_pod_uses_all_cores_that_its_action_can_use(self) -> None:
        two = [a_rollout((0.0, a_suite(8.0))), a_rollout((100.0, a_suite(8.0)))]
        limited, unlimited = StaticPods(2000, is_overcommitted=True), StaticPods(2000, is_unlimited=True)
        assert {round(record.act_s, 3) for record in simulated(two, limited, cores=8).records} == {8 * (0.1 + 0.9 / 2)}
        assert {round(record.act_s, 3) for record in simulated(two, unlimited, cores=8).records} == {
            round(8 * (0.1 + 0.9 / 8), 3)
        }

    def test_configured_overheads_are_added_to_run_time(self) -> None:
        workload, site = (
            SimWorkload((a_rollout((0.0, a_shell(1.0))),)),
            SimCluster(cpu_nodes=(8,), gpu_nodes=(), api_calls=1),
        )
        overheads = SimOverheads(start_s=0.5, pod_start_s=0.25)
        for policy, cost_s in ((FCFS, 0.5), (StaticPods(4000), 0.25)):
            classes = SimActionClasses(site, {}, DemandMode.FIXED)
            (record,) = WorkloadSimulation(workload, site, policy, classes, ClassMeans(), overheads).run().records
            assert record.act_s == 1.0 + cost_s

    def test_shared_service_slows_down_above_its_concurrency(self) -> None:
        score = ActionWork(cls="rm0", resource_kind=ResourceKind.GPU, seconds=4.0, service="rm0")
        services = {"rm0": SERVICES[0][0]}
        site = SimCluster(cpu_nodes=(), gpu_nodes=(), api_calls=1, dedicated={"rm0": 1}, shared=frozenset(services))

        def ends(count: int) -> set[float]:
            step = SimWorkload(tuple(a_rollout((0.0, score), task="mopd") for _ in range(count)), services)
            classes = SimActionClasses(site, services, DemandMode.ELASTIC)
            result = WorkloadSimulation(step, site, SparPolicy(), classes, ClassMeans()).run()
            return {round(record.ended, 6) for record in result.records}

        assert ends(1) == ends(4) == {4.0 + START_S}
        assert ends(8) == {8.0 + START_S}

    def test_restore_is_charged_if_service_is_not_resident(self) -> None:
        turns = [(0.0, a_score("rm0")), (5.0, a_score("rm0")), (5.0, a_score("rm1"))]
        result = scored([a_rollout(*turns, task="mopd")], FCFS, devices=1)
        small, other = SERVICES[0][0], SERVICES[1][0]
        assert [record.restore_s for record in result.records] == [small.restore_s(1), 0.0, other.restore_s(1)]

    @given(
        st.lists(
            st.tuples(st.floats(0.0, 20.0), st.sampled_from(["rm0", "rm1", "rm2", "rm9"])), min_size=1, max_size=16
        ),
        st.sampled_from((FCFS, ReferencePolicy(), SparPolicy())),
    )
    @settings(max_examples=80, deadline=None)
    def test_devices_in_use_never_exceed_existing_devices(
        self, scores: list[tuple[float, str]], policy: SchedulingPolicy
    ) -> None:
        rollouts = [a_rollout((think_s, a_score(name)), task="mopd") for think_s, name in scores]
        result = scored(rollouts, policy, devices=4)
        assert len(result.records) == len(scores)
        assert most_at_once(result.segments) <= 4

    def test_overallocating_policy_raises_overbooked_error(self) -> None:
        class Generous(FirstComeFirstServed):
            def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
                plan = super().plan(snapshot)
                return replace(plan, grants=tuple(g._replace(resources={"cpu_milli": 9000}) for g in plan.grants))

        with pytest.raises(OverbookedError, match="node 1"):
            simulated([a_rollout((0.0, a_shell()))], Generous(), cores=8)

    def test_policy_that_starts_nothing_raises_stuck_error(self) -> None:
        class Idle(FirstComeFirstServed):
            def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
                return SchedulingPlan()

        with pytest.raises(StuckError, match="1 actions"):
            simulated([a_rollout((0.0, a_shell()))], Idle())

    @given(some_rollouts, st.sampled_from(POLICIES))
    @settings(max_examples=120, deadline=None)
    def test_cores_in_use_never_exceed_existing_cores(
        self, rollouts: list[SimTrajectory], policy: SchedulingPolicy
    ) -> None:
        result = simulated(rollouts, policy, cores=8, asking=DemandMode.ELASTIC)
        assert len(result.records) == sum(len(rollout.actions) for rollout in rollouts)
        assert most_at_once(result.segments) <= 8 + 1e-9

    @given(some_rollouts)
    @settings(max_examples=30, deadline=None)
    def test_same_input_gives_same_result(self, rollouts: list[SimTrajectory]) -> None:
        assert simulated(rollouts, StaticPods(4000)) == simulated(rollouts, StaticPods(4000))

    def test_max_min_shares_are_fair_and_never_exceed_demand(self) -> None:
        wanted = {numbered(1): 1.0, numbered(2): 8.0, numbered(3): 8.0}
        assert max_min_shares(wanted, 8.0) == {numbered(1): 1.0, numbered(2): 3.5, numbered(3): 3.5}


class TestPrototype:
    def test_seed_gives_same_draws_as_prototype(self) -> None:
        step = synthetic_step(0)
        works = [turn.work for rollout in step.trajectories for turn in rollout.actions]
        assert len(works) == PROTOTYPE_ACTIONS
        assert sum(work.seconds for work in works) == pytest.approx(PROTOTYPE_SECONDS)

    @pytest.mark.parametrize(
        ("contender", "level", "act", "suite", "command", "step"),
        [
            ("static", 1.0, 5.0104, 15.0767, 0.4474, 899.1512),
            pytest.param("static", 0.125, 47.2684, 53.0657, 62.4908, 1825.7185, marks=pytest.mark.slow),
            pytest.param("shrunk", 0.25, 14.6121, 37.0446, 0.4474, 1284.4046, marks=pytest.mark.slow),
            ("fcfs", 1.0, 4.0638, 15.0967, 0.4674, 899.7712),
            pytest.param("reference", 1.0, 4.0859, 9.8596, 0.599, 803.4578, marks=pytest.mark.slow),
        ],
    )
    def test_step_statistics_match_the_prototype(
        self, contender: str, level: float, act: float, suite: float, command: float, step: float
    ) -> None:
        """The order of waiting scores differs: here it depends on when their trajectories began."""
        found = average_statistics(
            run_steps(ComparedPolicy(contender), PaperHardware(level, level), seed=0, steps=1, durations=ClassMeans)
        )
        assert found.act == pytest.approx(act, rel=0.01)
        assert found.suite == pytest.approx(suite, rel=0.005)
        assert found.command == pytest.approx(command, rel=0.01)
        assert found.step == pytest.approx(step, rel=0.005)


PROTOTYPE_ACTIONS = 4284
PROTOTYPE_SECONDS = 33192.39406975725


class TestPublishedWorkloads:
    def test_coding_workload_matches_published_turns_and_gaps(self) -> None:
        step = published_workload(PublishedWorkload.CODING, 0, trajectories=1024)
        turns = [len(rollout.actions) - 1 for rollout in step.trajectories]
        gaps = [turn.think_s for rollout in step.trajectories for turn in rollout.actions]
        assert np.quantile(turns, [0.5, 0.99]) == pytest.approx([26, 77], rel=0.15)
        assert np.quantile(gaps, [0.5, 0.9]) == pytest.approx([2.8, 7.0], rel=0.05)

    @pytest.mark.parametrize("name", PublishedWorkload)
    def test_published_workload_finishes_and_is_reproducible(self, name: PublishedWorkload) -> None:
        step = published_workload(name, 3, trajectories=24)
        site = SimCluster.from_totals(cores=64, gpus=12, api_calls=8)
        results = [
            WorkloadSimulation(
                step,
                site,
                SparPolicy(is_resizing=True),
                SimActionClasses(site, step.services, DemandMode.ELASTIC),
                LearnedDurations(),
            ).run()
            for _ in range(2)
        ]
        assert len(results[0].records) == sum(len(rollout.actions) for rollout in step.trajectories)
        assert results[0] == results[1]


@pytest.mark.slow
class TestPolicies:
    """Policies on a quarter of the paper's hardware."""

    quarter = PaperHardware(0.25, 0.25)

    def test_resizing_prevents_stragglers_from_dominating_step_time(self) -> None:
        steps = {
            contender: average_statistics(
                run_steps(contender, self.quarter, seed=0, steps=1, workload=partial(synthetic_step, stragglers=0.02))
            ).step
            for contender in (ComparedPolicy.SPAR_M, ComparedPolicy.REFERENCE)
        }
        assert steps[ComparedPolicy.SPAR_M] <= 0.6 * steps[ComparedPolicy.REFERENCE]

    def test_unknown_durations_barely_increase_completion_time(self) -> None:
        learnt, unknown = (
            average_statistics(run_steps(ComparedPolicy.SPAR_M, self.quarter, seed=0, steps=1, durations=known)).act
            for known in (LearnedDurations, UniformDurations)
        )
        assert unknown <= 1.15 * learnt


class TestUndeclaredElasticity:
    @pytest.mark.parametrize("resizing", [False, True], ids=["fixed", "resizing"])
    @pytest.mark.parametrize("cores", [8, 32])
    def test_completion_time_is_within_a_tenth_of_the_declared_one_after_64_actions(
        self, cores: int, resizing: bool
    ) -> None:
        chance = np.random.default_rng(7)
        site, policy = SimCluster(cpu_nodes=(cores,), gpu_nodes=(), api_calls=4), SparPolicy(is_resizing=resizing)

        def step(rollouts: int, turns: int) -> SimWorkload:
            suites = [[a_suite(float(chance.uniform(5, 15))) for _ in range(turns)] for _ in range(rollouts)]
            return SimWorkload(
                tuple(a_rollout(*((float(chance.uniform(1, 30)), each) for each in own)) for own in suites)
            )

        learning, measured = step(8, 8), step(8, 16)
        acts = {}
        for asking in (DemandMode.ELASTIC, DemandMode.UNDECLARED):
            classes, known = SimActionClasses(site, {}, asking), LearnedDurations()
            for each in (learning, measured):
                result = WorkloadSimulation(each, site, policy, classes, known).run()
            acts[asking] = np.mean([record.act_s for record in result.records])
        assert acts[DemandMode.UNDECLARED] <= 1.1 * acts[DemandMode.ELASTIC]


class TestSharedCores:
    def test_weighted_shares_follow_weights_up_to_each_demand(self) -> None:
        shares = max_min_shares({numbered(1): 4.0, numbered(2): 4.0}, 4.0, {numbered(1): 3.0, numbered(2): 1.0})
        assert shares == {numbered(1): pytest.approx(3.0), numbered(2): pytest.approx(1.0)}
        shares = max_min_shares({numbered(1): 1.0, numbered(2): 4.0}, 4.0, {numbered(1): 3.0, numbered(2): 1.0})
        assert shares == {numbered(1): pytest.approx(1.0), numbered(2): pytest.approx(3.0)}

    def test_action_on_shared_cores_uses_all_idle_ones(self) -> None:
        (record,) = simulated(
            [a_rollout((0.0, a_suite(10.0)))], SparPolicy(is_resizing=True), asking=DemandMode.SHARED
        ).records
        assert record.act_s == pytest.approx(START_S + 10.0 * (0.1 + 0.9 / 8))

    def test_two_actions_per_core_run_at_once(self) -> None:
        many = [a_rollout((0.0, a_shell(1.0))) for _ in range(8)]
        result = simulated(many, SparPolicy(is_resizing=True), cores=2, asking=DemandMode.SHARED)
        assert sorted(record.started for record in result.records)[:5] == [0.0] * 4 + [pytest.approx(2.0, abs=0.1)]
