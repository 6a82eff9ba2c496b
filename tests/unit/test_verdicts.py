"""What an endpoint's answer means, and when it is asked again."""

from datetime import UTC, datetime

import pytest

from arl_api.verdicts import LONGEST_PAUSE_S, Verdict, may_send_again, pause_s, retry_after_s, verdict_of

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *[(status, Verdict.ANSWERED) for status in (200, 201, 204, 302)],
        *[(status, Verdict.ITS_FAULT) for status in (400, 404, 405, 409, 413, 422)],
        *[(status, Verdict.REFUSED) for status in (401, 402, 403, 407)],
        *[(status, Verdict.THROTTLED) for status in (429, 503, 529)],
        *[(status, Verdict.UNAVAILABLE) for status in (408, 425, 500, 502, 504, 522, 599)],
        *[(status, Verdict.BROKE_OFF) for status in (0, 99, 101, 199, 600, 999)],
    ],
)
def test_a_status_says_whose_trouble_it_is(status: int, verdict: Verdict) -> None:
    assert verdict_of(status) is verdict


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_what_may_have_been_carried_out_is_sent_again_only_where_that_does_no_harm(
    verdict: Verdict, method: str, idempotent: bool
) -> None:
    harmless = idempotent or method not in ("POST", "PATCH")
    expected = {
        Verdict.THROTTLED: True,
        Verdict.UNREACHED: True,
        Verdict.UNAVAILABLE: harmless,
        Verdict.BROKE_OFF: harmless,
    }
    assert may_send_again(verdict, method, idempotent=idempotent) is expected.get(verdict, False)


def test_pauses_grow_and_are_never_shorter_than_what_was_asked_for() -> None:
    assert [pause_s(tries, asked_for_s=None, drawn=1.0) for tries in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert pause_s(1, asked_for_s=None, drawn=0.0) == 0.25
    assert pause_s(1, asked_for_s=7.0, drawn=1.0) == 7.0
    assert pause_s(60, asked_for_s=None, drawn=1.0) == LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("Wed, 25 Nov 2026 12:00:10 GMT", 10.0),
        ("Wed, 25 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("", None),
        ("²", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now=NOW) == seconds
