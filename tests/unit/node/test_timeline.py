"""The stages of an action's time on a node."""

import json

from arl_node.timeline import MAX_STAGES, AttemptTimeline


def test_stages_are_written_in_microseconds_since_arrival() -> None:
    timeline = AttemptTimeline(100.0)
    timeline.end_wait(101.5)
    timeline.add("batch", 101.5, 102.0, items=3, error=None)
    assert json.loads(timeline.to_json(102.25)) == {
        "us": 2_250_000,
        "stages": [
            {"name": "device wait", "at_us": 0, "us": 1_500_000},
            {"name": "batch", "at_us": 1_500_000, "us": 500_000, "items": 3},
        ],
    }


def test_attempt_ended_before_first_batch_shows_only_device_wait() -> None:
    assert json.loads(AttemptTimeline(1.0).to_json(3.0))["stages"] == [
        {"name": "device wait", "at_us": 0, "us": 2_000_000}
    ]


def test_long_timeline_keeps_first_stages_and_the_last() -> None:
    timeline = AttemptTimeline(0.0)
    for number in range(MAX_STAGES + 10):
        timeline.add("batch", number, number + 1, number=number)
    written = json.loads(timeline.to_json(MAX_STAGES + 10))
    assert [stage["number"] for stage in written["stages"]] == [*range(MAX_STAGES - 1), MAX_STAGES + 9]
    assert written["left_out"] == 10
