"""Which rounds of the scheduler are recorded."""

from typing import Any, cast

import pytest

from arl_scheduler.leader.scheduler_traces import SchedulerTraces
from arl_scheduler.settings import SchedulerSettings
from arl_trace.export import Exporter, Round


class _RecordingExporter:
    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def round(self, done: Round) -> None:
        self.rounds.append(done)


@pytest.mark.parametrize("with_rounds", [False, True])
def test_rounds_are_recorded_only_if_asked_for(with_rounds: bool) -> None:
    exporter = _RecordingExporter()
    traces = SchedulerTraces(cast(Exporter, exporter), with_rounds=with_rounds)
    traces.export_round([], started=1.0, decided=2.0, ended=3.0)
    assert len(exporter.rounds) == int(with_rounds)


def test_rounds_are_not_traced_by_default() -> None:
    fields: dict[str, Any] = dict(SchedulerSettings.model_fields)
    assert fields["trace_rounds"].default is False
