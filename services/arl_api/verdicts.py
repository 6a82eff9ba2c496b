"""Verdicts on an endpoint's responses, and the decision to send a request again. Pure."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from arl_wire.calls import IDEMPOTENT_METHODS

__all__ = [
    "LAST_RETRY_BEFORE_END_S",
    "MAX_RETRY_DELAY_S",
    "NOT_EXECUTED_VERDICTS",
    "CallVerdict",
    "asked_delay_s",
    "can_retry",
    "is_exhausted",
    "parse_retry_after_s",
    "retry_delay_s",
    "verdict_for_status",
]

MAX_RETRY_DELAY_S = 8.0
"""Maximum seconds before a retry if the endpoint asks for no delay, as in the clients of OpenAI and Anthropic."""
MAX_HINT_S = 60.0
"""Maximum delay in seconds that an endpoint may ask for. A longer one is ignored, as those clients do: it may be a
mistake, and one call would close the endpoint for all others.
"""
LAST_RETRY_BEFORE_END_S = 1.0
"""Seconds before the end of the time of a call at which a last retry is sent, however long the endpoint asked for."""
FIRST_RETRY_DELAY_S = 0.5
MAX_ERROR_BYTES = 64 << 10
"""Maximum bytes of an error body that are parsed."""
EXHAUSTED_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "access_terminated"}
)
"""Values of `code` or `type` in an error of status 429 that no wait ends: the budget of the key is used up."""
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)s")
THROTTLED_STATUSES = frozenset({429, 503, 529})
"""Statuses of throttling: RFC 6585 and RFC 9110. Some APIs return 529 when they are overloaded."""
TEMPORARY_STATUSES = frozenset({408, 425, 500, 502, 504, *range(520, 528)})
"""Statuses of temporary errors. The 52x are those of a proxy in front of the endpoint (Cloudflare's)."""
CREDENTIAL_STATUSES = frozenset({401, 402, 403, 407})


class CallVerdict(StrEnum):
    """The result of a request. All but the first two are reasons of an `infra_error`."""

    ANSWERED = "ok"
    USER_ERROR = "user_error"  # the request is wrong, and a retry would be too
    THROTTLED = "endpoint_throttled"  # the request was not executed: the endpoint is overloaded
    UNAVAILABLE = "endpoint_unavailable"  # the endpoint has failed; the request may have been executed
    REFUSED = "endpoint_refused"  # our key or its budget is not accepted, for any request
    UNREACHABLE = "endpoint_unreachable"  # no connection was made, so the request was not executed
    CONNECTION_LOST = "endpoint_broke_off"  # the connection ended before the response did
    TIMED_OUT = "endpoint_timeout"  # no response within the action's time


NOT_EXECUTED_VERDICTS = frozenset({CallVerdict.THROTTLED, CallVerdict.UNREACHABLE})
UNKNOWN_EXECUTION_VERDICTS = frozenset({CallVerdict.UNAVAILABLE, CallVerdict.CONNECTION_LOST})


def verdict_for_status(status: int) -> CallVerdict:
    """Return the verdict for a status. Redirections are answers: they are not followed to unconfigured addresses."""
    if not 200 <= status <= 599:
        return CallVerdict.CONNECTION_LOST
    if status < 400:
        return CallVerdict.ANSWERED
    if status in THROTTLED_STATUSES:
        return CallVerdict.THROTTLED
    if status in CREDENTIAL_STATUSES:
        return CallVerdict.REFUSED
    return CallVerdict.UNAVAILABLE if status in TEMPORARY_STATUSES or status >= 500 else CallVerdict.USER_ERROR


def can_retry(verdict: CallVerdict, method: str, *, idempotent: bool) -> bool:
    """Return True if a retry cannot execute a non-idempotent request twice."""
    if verdict in NOT_EXECUTED_VERDICTS:
        return True
    return verdict in UNKNOWN_EXECUTION_VERDICTS and (idempotent or method in IDEMPOTENT_METHODS)


def retry_delay_s(
    attempts: int, *, retry_after_s: float | None, random_fraction: float, left_s: float | None
) -> float | None:
    """Return the seconds before the next request, at least what the endpoint asked for; None if no time is left.

    `random_fraction`, from 0 to 1, spreads requests that failed together. A delay beyond the time of the call becomes
    a last retry shortly before its end.
    """
    longest = min(MAX_RETRY_DELAY_S, FIRST_RETRY_DELAY_S * 2.0 ** min(attempts - 1, 8))
    wanted = max(retry_after_s or 0.0, longest * (0.5 + random_fraction / 2))
    if left_s is None or wanted < left_s:
        return wanted
    last = left_s - min(LAST_RETRY_BEFORE_END_S, left_s / 2)
    return last if last >= FIRST_RETRY_DELAY_S / 2 else None


def asked_delay_s(headers: Mapping[str, str], body: bytes, *, now: datetime) -> float | None:
    """Return the seconds that an endpoint asks to wait, or None if it asks for none or for an implausible time.

    Read in this order: `retry-after-ms` and `x-ms-retry-after-ms` (OpenAI, Azure), `Retry-After` (RFC 9110, section
    10.2.3), and `RetryInfo` in the body (Google). Names of headers are in lower case.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (delay := _number(headers.get(name))) is not None:
            return _plausible(delay / 1000)
    if (delay := parse_retry_after_s(headers.get("retry-after"), now=now)) is not None:
        return _plausible(delay)
    return _plausible(_retry_info_s(body))


def is_exhausted(body: bytes) -> bool:
    """Return True if the body of a 429 says that the budget of the key is used up."""
    error = _error_object(body)
    return any(isinstance(error.get(name), str) and error[name] in EXHAUSTED_CODES for name in ("code", "type"))


def parse_retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Return the seconds of either form of RFC 9110, section 10.2.3, or None if it is neither."""
    if header is None:
        return None
    if (seconds := _number(header)) is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(header.strip())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now) / timedelta(seconds=1))
    except (ValueError, OverflowError, TypeError):
        return None


def _number(header: str | None) -> float | None:
    text = (header or "").strip()
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else None


def _plausible(delay_s: float | None) -> float | None:
    return delay_s if delay_s is not None and 0 < delay_s <= MAX_HINT_S else None


def _retry_info_s(body: bytes) -> float | None:
    details = _error_object(body).get("details")
    for each in details if isinstance(details, list) else []:
        if isinstance(each, dict) and each.get("@type") == RETRY_INFO:
            found = _DURATION.fullmatch(str(each.get("retryDelay")))
            return float(found[1]) if found is not None else None
    return None


def _error_object(body: bytes) -> dict[str, Any]:
    """Return `error` of a JSON body, or of the first element of a JSON array, as OpenAI and Google write it."""
    if len(body) > MAX_ERROR_BYTES:
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    document = document[0] if isinstance(document, list) and document else document
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) else {}
