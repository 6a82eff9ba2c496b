"""Example of the report of a step in the OpenAPI document."""

from typing import Any

__all__ = ["STEP_REPORT"]

_TRAJECTORY: dict[str, Any] = {
    "trajectory": "s12-p3-r5",
    "prompt": "swe-gym/toolz-417",
    "started_at": "2026-03-02T09:00:00Z",
    "turns": 11,
    "expected_turns": 18,
    "times": {"think_s": 62.1, "queue_s": 4.2, "run_s": 31.8, "core_wait_s": 3.3, "overhead_s": 0.4},
    "projected_end_at": "2026-03-02T09:02:40Z",
    "log_deviation": 0.3,
    "rule": "critical_trajectory",
}
STEP_REPORT: dict[str, Any] = {
    "task": "ai-coding",
    "step": 12,
    "started_at": "2026-03-02T09:00:00Z",
    "open": 3,
    "ended": 253,
    "unpredicted": 0,
    "critical": 1,
    "projected_end_at": "2026-03-02T09:02:40Z",
    "slowest": _TRAJECTORY,
    "savings": [{"resource": "cpu", "units": 64, "waited_s": 7.5, "saved_s": 0.115385}],
    "trajectories": [_TRAJECTORY],
}
