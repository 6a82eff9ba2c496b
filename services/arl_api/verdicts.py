"""What an endpoint's answer means for the action, and whether the request is sent again. Pure."""

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
"""RFC 6585 and RFC 9110; 529 is how some say that they are overloaded."""
TEMPORARY_STATUSES = frozenset({408, 425, 500, 502, 504, *range(520, 528)})
"""The 52x are those of a proxy before the endpoint (Cloudflare's)."""
CREDENTIAL_STATUSES = frozenset({401, 402, 403, 407})


class CallVerdict(StrEnum):
    """The reason of an `infra_error`, but for the first two."""

    ANSWERED = "ok"
    USER_ERROR = "user_error"  # the request is wrong, and would be so again
    THROTTLED = "endpoint_throttled"  # it was not carried out: the endpoint has too much to do
    UNAVAILABLE = "endpoint_unavailable"  # the endpoint has trouble; whether it was carried out is not known
    REFUSED = "endpoint_refused"  # our key or its budget is not good enough, whatever is asked
    UNREACHABLE = "endpoint_unreachable"  # no connection came about, so it was not carried out
    CONNECTION_LOST = "endpoint_broke_off"  # the connection ended before the answer did
    TIMED_OUT = "endpoint_timeout"  # there was no answer in the action's time


NOT_EXECUTED_VERDICTS = frozenset({CallVerdict.THROTTLED, CallVerdict.UNREACHABLE})
UNKNOWN_EXECUTION_VERDICTS = frozenset({CallVerdict.UNAVAILABLE, CallVerdict.CONNECTION_LOST})


def verdict_for_status(status: int) -> CallVerdict:
    """Of an answer. A redirection is one: nobody follows it to an address that no operator named."""
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
    """Never what may have been carried out, and would then be carried out twice."""
    if verdict in NOT_EXECUTED_VERDICTS:
        return True
    return verdict in UNKNOWN_EXECUTION_VERDICTS and (idempotent or method in IDEMPOTENT_METHODS)


def retry_delay_s(tries: int, *, retry_after_s: float | None, random_fraction: float) -> float:
    """Before the next request, after so many: at least what the endpoint asked for.

    `drawn`, from 0 to 1, keeps those apart that failed together.
    """
    longest = min(MAX_RETRY_DELAY_S, FIRST_RETRY_DELAY_S * 2.0 ** (tries - 1))
    return max(retry_after_s or 0.0, longest * (0.5 + random_fraction / 2))


def parse_retry_after_s(header: str | None, *, now: datetime) -> float | None:
    """Seconds, of either form of RFC 9110, section 10.2.3; None of what is neither."""
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
