from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import DemandImpossible, FieldError, NotFound, ProblemDetails, Unavailable, error_from_problem
from arl_wire.internal.admission import AdmitItem, AdmitRequest, CoalescedCall, SnapshotSource, SubmissionMetadata
from arl_wire.reward_services.service import RegisterRewardServiceRequest

BASE: dict[str, Any] = {"task": "t", "argv": ["true"]}
SESSION: dict[str, Any] = {
    "argv": None, "trajectory": "x", "environment": {"scope": "trajectory"}, "session": "main", "command": "true",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"argv": None}, ""),
        ({"source": "1"}, ""),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, ""),
        ({"argv": ["a\x00b"]}, "argv.0"),
        ({"argv": None, "source": "\ud800"}, "source"),
        ({"task": ""}, "task"),
        ({"task": "a b"}, "task"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"demand": {"cpu": -1}}, "demand.cpu.cores"),
        ({"demand": {"cpu": {"min": 4, "max": 2}}}, "demand.cpu.range"),
        ({"demand": {"memory_mib": 1 << 60}}, "demand.memory_mib"),
        ({"demand": {"bananas": 1}}, "demand.bananas"),
        ({"files": {"/etc/passwd": ""}}, "files./etc/passwd.[key]"),
        ({"files": {"a/../../b": ""}}, "files.a/../../b.[key]"),
        ({"files": {"a": "no base64!"}}, "files.a"),
        ({"cwd": ".."}, "cwd"),
        ({"environment": {"scope": "trajectory"}}, ""),
        ({"environment": {"template": "../etc"}}, "environment.template"),
        ({"elasticity": {"model": "amdahl", "parallel_fraction": 2}}, "elasticity.amdahl.parallel_fraction"),
        ({"elasticity": {"model": "table", "seconds": {"many": 1}}}, "elasticity.table"),
        ({"labels": {f"l{n}": "" for n in range(65)}}, "labels"),
        ({"retries": 11}, "retries"),
        ({"kind": "teleport"}, "kind"),
        ({"argv": None, "session": "main"}, ""),
        ({"argv": None, "session": "main", "command": "true"}, ""),
        ({"session": "main", "command": "true"}, ""),
        ({"command": "true"}, ""),
        ({**SESSION, "cwd": "d"}, ""),
        ({**SESSION, "env": {"A": "1"}}, ""),
        ({**SESSION, "session": "a b"}, "session"),
        ({**SESSION, "command": "a\x00"}, "command"),
        ({"typo": 1}, "typo"),
        ({"prompt": "p"}, "prompt"),
        ({"group": "g"}, "group"),
        ({"expected_turns": 3}, "expected_turns"),
        ({"progress": 0.5}, "progress"),
        ({"trajectory": "x", "expected_turns": 0}, "expected_turns"),
        ({"trajectory": "x", "progress": 1.5}, "progress"),
        ({"trajectory": "x", "prompt": "a b"}, "prompt"),
    ],
)
def test_invalid_field_is_rejected_by_its_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SubmitActionRequest.model_validate(BASE | changed)
    assert field in {".".join(str(part) for part in error["loc"]) for error in caught.value.errors()}


def test_admit_request_json_is_read_back_unchanged() -> None:
    more = {"demand": {"cpu": {"min": 1, "max": 2}}, "elasticity": {"model": "table", "seconds": {"1": 2.0}}}
    actions = [
        SubmitActionRequest.model_validate(each)
        for each in (
            BASE,
            BASE | more | {"files": {"a": "AAEC"}, "stdin": '"\\\n\u2028', "labels": {"a": ""}, "timeout_s": 300},
            BASE | {"elasticity": {"model": "amdahl", "parallel_fraction": 0, "resizable": "any"}, "env": {"A": "}]"}},
            BASE | SESSION | {"environment": {"id": str(UUID(int=5)), "idle_ttl_s": 9}, "trajectory": None},
            {"task": "t", "kind": "score", "service": "s", "items": [{"text": "a", "chat": None}, {"token_ids": [1]}]},
        )
    ]
    plain = SubmissionMetadata(project_id=1)
    full = SubmissionMetadata(
        project_id=2,
        key='"}',
        body_hash="00",
        traceparent="00-" + "a" * 32,
        tracestate="k=v",
        begins_with=SnapshotSource(snapshot=UUID(int=3), node=4),
        asked_for=[CoalescedCall(items=2, step=0), CoalescedCall(items=1, trajectory="x", traceparent="00")],
    )
    items = [(said, action) for action in actions for said in (plain, full)]
    written = [said.to_item_json(action.model_dump_json(exclude_defaults=True)) for said, action in items]
    read = AdmitRequest.model_validate_json(AdmitRequest.json_from_items(written, gang=True))
    assert read == AdmitRequest(items=[AdmitItem(**dict(said), action=action) for said, action in items], gang=True)
    assert AdmitRequest.model_validate_json(AdmitRequest.json_from_items(written[:1])).gang is False


def test_session_in_trajectory_environment_is_accepted() -> None:
    assert SubmitActionRequest.model_validate(BASE | SESSION).session == "main"


def test_omitted_fields_have_defaults() -> None:
    action = SubmitActionRequest.model_validate(BASE)
    assert (action.timeout_s, action.retries, action.environment.scope, action.demand.cpu) == (
        300,
        0,
        "ephemeral",
        None,
    )


def test_problem_details_restore_the_original_error() -> None:
    sent = DemandImpossible("too much", errors=[FieldError(field="demand.cpu", message="64 of 2")])
    received = error_from_problem(ProblemDetails.model_validate_json(sent.to_problem(trace_id="abc").model_dump_json()))
    assert type(received) is DemandImpossible
    assert (received.detail, received.errors, received.trace_id) == ("too much", sent.errors, "abc")


@pytest.mark.parametrize(("status", "expected"), [(404, NotFound), (503, Unavailable)])
def test_unknown_error_code_maps_to_error_of_its_status(status: int, expected: type[Exception]) -> None:
    assert (
        type(error_from_problem(ProblemDetails(title="", status=status, detail="", code="from_the_future"))) is expected
    )


SPLIT = {"name": "s", "kind": "logprobs", "source": "model", "options": {"tensor_parallel": 8}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"options": {"tensor_parallel": 9}}, r"options\.tensor_parallel"),
        ({"options": {"tensor_parallel": 0}}, r"options\.tensor_parallel"),
        ({"kind": "similarity"}, r"`similarity` cannot be split across devices: remove options\.tensor_parallel"),
        ({"kind": "judge"}, "uses the settings of its engine: remove tensor_parallel"),
    ],
)
def test_tensor_parallel_is_accepted_only_for_torch_models(changed: dict[str, Any], said: str) -> None:
    assert RegisterRewardServiceRequest.model_validate(SPLIT).options.tensor_parallel == 8
    with pytest.raises(ValidationError, match=said):
        RegisterRewardServiceRequest.model_validate(SPLIT | changed)
