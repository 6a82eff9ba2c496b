"""Conversion of rows to the API's models."""

import json
from base64 import b64encode
from hashlib import blake2b

from pydantic import TypeAdapter, ValidationError

from arl_core.domain.completion_times import CompletionTimes, seconds_between
from arl_store.tx import Row
from arl_wire.actions.action import Action, ActionResult, ActionTimes, OutputStream
from arl_wire.calls import CallResponse
from arl_wire.environments.images import ImagePullProgress
from arl_wire.environments.network import NetworkUsage
from arl_wire.scores import Score

__all__ = ["action_etag", "action_from_row", "result_size"]

SCORE_LIST = TypeAdapter(list[Score])
SCORE_BYTES = 96
"""Estimated bytes of one score entry in a response; errors count the same."""
NUMBER_BYTES = 20
"""Estimated bytes of each further number in a score entry."""


def action_from_row(row: Row) -> Action:
    """Return the action. Its result is included if the row was read with one."""
    has_result = row.get("has_result", False)
    return Action(
        id=row.id,
        task=row.task,
        trajectory=row.trajectory,
        kind=row.kind,
        environment=row.environment_id,
        state=row.state,
        outcome=row.outcome,
        reason=row.reason,
        message=row.message if has_result else None,
        grant_no=row.grant_no,
        failures=row.failures,
        node=row.node,
        class_key=str(row.class_key),
        demand=json.loads(row.demand),
        elastic=json.loads(row.elastic) if row.elastic is not None else None,
        priority=row.priority,
        gang=json.loads(row.gang)["id"] if row.gang is not None else None,
        allocation=json.loads(row.amounts) if row.amounts is not None else None,
        critical=row.is_critical,
        cancel_requested=row.cancel_requested_at is not None,
        created_at=row.created_at,
        deadline_at=row.deadline_at,
        granted_at=row.granted_at,
        started_at=row.started_at,
        settled_at=row.settled_at,
        times=_build_times(row),
        labels=json.loads(row.labels),
        image=_image_pull(row),
        result=_parse_verifier_scores(_build_result(row), row.kind) if has_result else None,
    )


def action_etag(action: Action) -> str:
    """Return the entity tag of an action. It changes with each state change, cancellation request and resize.

    Timestamps are not part of it: each of their changes also changes the state, the grant or the failures.
    """
    parts = [action.state, action.grant_no, action.failures, action.cancel_requested, action.allocation]
    digest = blake2b(json.dumps([str(action.id), *parts], sort_keys=True).encode(), digest_size=8)
    return f'W/"{digest.hexdigest()}"'


def result_size(action: Action) -> int:
    """Return the approximate size of an action's result in a response, in bytes."""
    result = action.result
    if result is None:
        return 0
    bodies = [result.response.body] if result.response is not None else []
    streams = sum(len(each.text) + len(each.base64 or "") for each in (result.stdout, result.stderr, *bodies))
    scores = sum(
        SCORE_BYTES + NUMBER_BYTES * _number_count(score) + _payload_bytes(score) for score in result.scores or ()
    )
    return streams + scores + sum(len(content) for content in result.files.values())


def _image_pull(row: Row) -> ImagePullProgress | None:
    """Return the pull that a queued action waits for, if the row was read with one."""
    pull = row.get("image_pull")
    found = ImagePullProgress.model_validate_json(pull) if pull is not None else None
    return found if found is not None and found.state != "ready" else None


def _build_times(row: Row) -> ActionTimes:
    """Compute the parts of the action completion time.

    `queue_s` ends at the last grant, `run_s` is the manager's monotonic interval, `overhead_s` is the remainder.
    `counted_s` is the part of `run_s` that counts for the timeout.
    """
    if row.settled_at is None:
        return ActionTimes(queue_s=seconds_between(row.created_at, row.granted_at) if row.granted_at else None)
    times = CompletionTimes.from_timestamps(row.created_at, row.granted_at, row.settled_at, row.run_us)
    return ActionTimes(
        queue_s=times.queue_s,
        run_s=times.run_s,
        counted_s=row.counted_us / 1e6 if row.counted_us is not None else None,
        overhead_s=times.overhead_s,
        act_s=times.act_s,
    )


def _build_result(row: Row) -> ActionResult:
    if row.response is not None:
        body = _build_stream(row.stdout, row.stdout_bytes)
        return ActionResult(grant_no=row.grant_no, response=CallResponse(**json.loads(row.response), body=body))
    return ActionResult(
        grant_no=row.grant_no,
        exit_code=row.exit_code,
        signal=row.signal,
        stdout=_build_stream(row.stdout, row.stdout_bytes),
        stderr=_build_stream(row.stderr, row.stderr_bytes),
        files=json.loads(row.files),
        missing_files=row.missing_files,
        cpu_s=row.cpu_us / 1e6,
        peak_memory_mib=round(row.peak_memory_kib / 1024, 3),
        leftover_processes=row.leftover_processes,
        enforcement=json.loads(row.enforcement),
        network=NetworkUsage.model_validate_json(row.network) if row.network is not None else None,
        scores=SCORE_LIST.validate_json(row.scores) if row.scores is not None else None,
    )


def _parse_verifier_scores(result: ActionResult, kind: str) -> ActionResult:
    """Move the scores that a verifier printed from stdout to `scores`."""
    if kind != "score" or result.scores is not None or not result.stdout.text or result.stdout.truncated:
        return result
    try:
        scores = SCORE_LIST.validate_json(result.stdout.text)
    except ValidationError:
        # The program was terminated while it printed.
        return result
    return result.model_copy(update={"scores": scores, "stdout": OutputStream()})


def _build_stream(kept: bytes, total: int) -> OutputStream:
    truncated = total > len(kept)
    try:
        return OutputStream(text=kept.decode(), total_bytes=total, truncated=truncated)
    except UnicodeDecodeError:
        text = kept.decode(errors="backslashreplace")
        return OutputStream(text=text, base64=b64encode(kept).decode(), total_bytes=total, truncated=truncated)


def _payload_bytes(score: Score) -> int:
    return sum(len(json.dumps(each)) for each in (score.details, score.completion) if each)


def _number_count(score: Score) -> int:
    tops = sum(len(each) for each in score.top_token_ids or ())
    return 2 * tops + sum(len(each or ()) for each in (score.values, score.logprobs, score.token_ids, score.ranks))
