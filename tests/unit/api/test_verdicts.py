"""The meaning of an endpoint's response, and the conditions of a retry."""

from datetime import UTC, datetime

import pytest

from arl_api.verdicts import (
    MAX_RETRY_DELAY_S,
    CallVerdict,
    can_retry,
    parse_retry_after_s,
    retry_delay_s,
    verdict_for_status,
)

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *[(status, CallVerdict.ANSWERED) for status in (200, 201, 204, 302)],
        *[(status, CallVerdict.USER_ERROR) for status in (400, 404, 405, 409, 413, 422)],
        *[(status, CallVerdict.REFUSED) for status in (401, 402, 403, 407)],
        *[(status, CallVerdict.THROTTLED) for status in (429, 503, 529)],
        *[(status, CallVerdict.UNAVAILABLE) for status in (408, 425, 500, 502, 504, 522, 599)],
        *[(status, CallVerdict.CONNECTION_LOST) for status in (0, 99, 101, 199, 600, 999)],
    ],
)
def test_http_status_maps_to_its_verdict(status: int, verdict: CallVerdict) -> None:
    assert verdict_for_status(status) is verdict


@pytest.mark.parametrize("verdict", CallVerdict)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_possibly_executed_call_is_retried_only_if_harmless(
    verdict: CallVerdict, method: str, idempotent: bool
) -> None:
    harmless = idempotent or method not in ("POST", "PATCH")
    expected = {
        CallVerdict.THROTTLED: True,
        CallVerdict.UNREACHABLE: True,
        CallVerdict.UNAVAILABLE: harmless,
        CallVerdict.CONNECTION_LOST: harmless,
    }
    assert can_retry(verdict, method, idempotent=idempotent) is expected.get(verdict, False)


def test_retry_delay_grows_and_respects_retry_after() -> None:
    assert [retry_delay_s(tries, retry_after_s=None, random_fraction=1.0) for tries in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert retry_delay_s(1, retry_after_s=None, random_fraction=0.0) == 0.25
    assert retry_delay_s(1, retry_after_s=7.0, random_fraction=1.0) == 7.0
    assert retry_delay_s(60, retry_after_s=None, random_fraction=1.0) == MAX_RETRY_DELAY_S


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
def test_retry_after_header_accepts_seconds_or_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after_s(header, now=NOW) == seconds
