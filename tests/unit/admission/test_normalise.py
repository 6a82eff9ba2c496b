"""Test the rows that admission makes of CPU demands."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from arl_admission.normalise import CpuForm, NewAction, normalise
from arl_wire.internal.admission import AdmitItem
from support.builders import a_submission, numbered


def normalised(cpu: Any, form: CpuForm = "shared", **fields: Any) -> NewAction:
    demand = {} if cpu is None else {"cpu": cpu}
    item = AdmitItem(project_id=1, action=a_submission(demand=demand, **fields))
    return normalise(item, id=numbered(1), queue_id=1, cpu_form=form)


@pytest.mark.parametrize(
    ("cpu", "milli", "sharing"),
    [
        (None, 500, {"guarantee_milli": 100, "limit_milli": None, "is_declared": False}),
        (1, 1000, {"guarantee_milli": 1000, "limit_milli": None, "is_declared": True}),
        (0.25, 250, {"guarantee_milli": 250, "limit_milli": None, "is_declared": True}),
        ({"min": 1, "max": 4}, 1000, {"guarantee_milli": 1000, "limit_milli": 4000, "is_declared": True}),
        ({"min": 2}, 2000, {"guarantee_milli": 2000, "limit_milli": None, "is_declared": True}),
    ],
)
def test_demand_for_shared_cores(cpu: Any, milli: int, sharing: dict[str, Any]) -> None:
    new = normalised(cpu)
    assert json.loads(new.demand)["cpu_milli"] == milli
    assert json.loads(new.cpu_sharing or "null") == sharing
    assert new.elastic is None


@pytest.mark.parametrize(
    ("cpu", "milli"), [({"min": 1, "exclusive": True}, 1000), ({"min": 2, "exclusive": True}, 2000)]
)
def test_exclusive_demand_is_not_shared(cpu: Any, milli: int) -> None:
    new = normalised(cpu)
    assert (json.loads(new.demand)["cpu_milli"], new.cpu_sharing) == (milli, None)


def test_exclusive_range_is_elastic() -> None:
    new = normalised({"min": 1, "max": 4, "exclusive": True})
    assert json.loads(new.elastic or "null")["max"] == 4000
    assert new.cpu_sharing is None


def test_default_form_of_the_system_applies_only_without_a_choice() -> None:
    assert normalised(None, "exclusive").cpu_sharing is None
    assert json.loads(normalised(None, "exclusive").demand)["cpu_milli"] == 1000
    assert normalised({"min": 1, "exclusive": False}, "exclusive").cpu_sharing is not None


def test_forms_are_different_classes() -> None:
    assert len({normalised(cpu).class_key for cpu in (None, 1, 0.5, {"min": 1, "exclusive": True})}) == 4


def test_actions_without_a_program_share_nothing() -> None:
    new = normalised(None, kind="environment.create", argv=None, trajectory="t", environment={"scope": "trajectory"})
    assert (json.loads(new.demand)["cpu_milli"], new.cpu_sharing) == (0, None)


@pytest.mark.parametrize("cpu", [{"min": 0.5, "exclusive": True}, {"min": 1, "max": 1.5, "exclusive": True}])
def test_exclusive_fraction_is_refused(cpu: Any) -> None:
    with pytest.raises(ValidationError, match="exclusive cores must be whole numbers"):
        normalised(cpu)


@pytest.mark.parametrize(
    ("cpu", "timeout_s", "wall_timeout_s", "limit_s"),
    [
        ({"min": 1, "exclusive": True}, 10.0, 5.0, 5.0),
        ({"min": 1, "exclusive": True}, 10.0, 50.0, 10.0),
        (None, 10.0, 50.0, 50.0),
        (None, 10.0, None, 10.0),
    ],
)
def test_real_time_limit_decides_on_the_nodes_that_end_later(
    cpu: Any, timeout_s: float, wall_timeout_s: float | None, limit_s: float
) -> None:
    new = normalised(cpu, timeout_s=timeout_s, wall_timeout_s=wall_timeout_s)
    assert new.to_queued_row(submitted=0.0, deadline=None).timeout_s == limit_s
