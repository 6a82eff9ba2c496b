"""The meaning of an endpoint's response, and the conditions of a retry."""

import json
from datetime import UTC, datetime

import pytest

from arl_api.verdicts import (
    MAX_RETRY_DELAY_S,
    RETRY_INFO,
    CallVerdict,
    asked_delay_s,
    can_retry,
    is_exhausted,
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
    def delay(tries: int, *, asked_s: float | None = None, fraction: float = 1.0) -> float | None:
        return retry_delay_s(tries, retry_after_s=asked_s, random_fraction=fraction, left_s=None)

    assert [delay(tries) for tries in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert delay(1, fraction=0.0) == 0.25
    assert delay(1, asked_s=7.0) == 7.0
    assert delay(10**6) == MAX_RETRY_DELAY_S


@pytest.mark.parametrize(("left_s", "delay_s"), [(9.0, 8.0), (7.5, 6.5), (1.0, 0.5), (0.5, 0.25), (0.4, None)])
def test_delay_beyond_the_time_becomes_a_last_retry_before_its_end(left_s: float, delay_s: float | None) -> None:
    assert retry_delay_s(9, retry_after_s=30.0, random_fraction=1.0, left_s=left_s) == delay_s


@pytest.mark.parametrize(
    ("headers", "body", "delay_s"),
    [
        ({}, {}, None),
        ({"retry-after": "3"}, {}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "3"}, {}, 0.25),
        ({"x-ms-retry-after-ms": "1500"}, {}, 1.5),
        ({"retry-after": "Wed, 25 Nov 2026 12:00:10 GMT"}, {}, 10.0),
        ({"retry-after": "60"}, {}, 60.0),
        ({"retry-after": "61"}, {}, None),
        ({"retry-after": "900000"}, {}, None),
        ({"retry-after": "9" * 400}, {}, None),
        ({"retry-after": "0"}, {}, None),
        ({"retry-after": "-3"}, {}, None),
        ({"retry-after": "soon"}, {}, None),
        ({"retry-after": "Wed, 25 Nov 2099 12:00:10 GMT"}, {}, None),
        ({}, {"error": {"code": 429, "details": [{"@type": RETRY_INFO, "retryDelay": "34.07s"}]}}, 34.07),
        ({}, [{"error": {"details": [{"@type": RETRY_INFO, "retryDelay": "7s"}]}}], 7.0),
        ({}, {"error": {"details": [{"@type": RETRY_INFO, "retryDelay": "later"}]}}, None),
        ({}, {"error": {"details": {"@type": RETRY_INFO}}}, None),
    ],
)
def test_delay_is_read_as_the_clients_of_the_providers_read_it(
    headers: dict[str, str], body: object, delay_s: float | None
) -> None:
    assert asked_delay_s(headers, json.dumps(body).encode(), now=NOW) == delay_s


@pytest.mark.parametrize(
    ("body", "exhausted"),
    [
        (b'{"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}', True),
        (b'{"error": {"type": "billing_hard_limit_reached", "code": null}}', True),
        (b'{"error": {"code": "rate_limit_exceeded", "type": "requests"}}', False),
        (b'{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}', False),
        (b'{"error": {"code": ["insufficient_quota"]}}', False),
        (b'{"error": "insufficient_quota"}', False),
        (b"insufficient_quota", False),
        (b"[" * 9999, False),
    ],
)
def test_used_up_budget_is_recognized_by_its_code(body: bytes, exhausted: bool) -> None:
    assert is_exhausted(body) is exhausted


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
