"""Log lines have UTC times, so that lines of several machines can be read together."""

import json
import logging
import time

import pytest

from arl_kit.telemetry import set_up_logging


def test_log_line_time_is_in_utc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        set_up_logging("gateway", "INFO")
        record = logging.LogRecord("here", logging.INFO, __file__, 1, "said", None, None)
        record.created, record.msecs = 0.25, 250.0
        root.handle(record)
    finally:
        root.handlers[:], root.level = before
        monkeypatch.undo()
        time.tzset()
    assert json.loads(capsys.readouterr().err)["at"] == "1970-01-01T00:00:00.250Z"
