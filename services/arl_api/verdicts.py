"""Verdicts on an endpoint's responses, and the decision to send a request again. Pure."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum

from arl_wire.calls import IDEMPOTENT_METHODS

__all__ = [
    "MAX_RETRY_DELAY_S",
    "CallVerdict",
    "can_retry",
    "parse_retry_after_s",
    "retry_delay_s",
    "verdict_for_status",
]

MAX_RETRY_DELAY_S = 60.0
FIRST_RETRY_DELAY_S = 0.5
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


def retry_delay_s(attempts: int, *, retry_after_s: float | None, random_fraction: float) -> float:
    """Return the seconds before the next request, at least what the endpoint asked for.

    `random_fraction`, from 0 to 1, spreads requests that failed together.
    """
    longest = min(MAX_RETRY_DELAY_S, FIRST_RETRY_DELAY_S * 2.0 ** (attempts - 1))
    return max(retry_after_s or 0.0, longest * (0.5 + random_fraction / 2))


def parse_retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Return the seconds of either form of RFC 9110, section 10.2.3, or None if it is neither."""
    if header is None:
        return None
    header = header.strip()
    if header.isascii() and header.replace(".", "", 1).isdigit():
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now) / timedelta(seconds=1))
    except (ValueError, OverflowError, TypeError):
        return None
