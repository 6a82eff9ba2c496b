"""What an endpoint's answer means for the action, and whether the request is sent again. Pure."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum

from arl_wire.calls import REPEATABLE

__all__ = ["LONGEST_PAUSE_S", "Verdict", "may_send_again", "pause_s", "retry_after_s", "verdict_of"]

LONGEST_PAUSE_S = 60.0
FIRST_PAUSE_S = 0.5
TOO_MUCH = frozenset({429, 503, 529})
"""RFC 6585 and RFC 9110; 529 is how some say that they are overloaded."""
FOR_A_WHILE = frozenset({408, 425, 500, 502, 504, *range(520, 528)})
"""The 52x are those of a proxy before the endpoint (Cloudflare's)."""
OUR_KEY = frozenset({401, 402, 403, 407})


class Verdict(StrEnum):
    """The reason of an `infra_error`, but for the first two."""

    ANSWERED = "ok"
    ITS_FAULT = "user_error"  # the request is wrong, and would be so again
    THROTTLED = "endpoint_throttled"  # it was not carried out: the endpoint has too much to do
    UNAVAILABLE = "endpoint_unavailable"  # the endpoint has trouble; whether it was carried out is not known
    REFUSED = "endpoint_refused"  # our key or its budget is not good enough, whatever is asked
    UNREACHED = "endpoint_unreachable"  # no connection came about, so it was not carried out
    BROKE_OFF = "endpoint_broke_off"  # the connection ended before the answer did
    TIMED_OUT = "endpoint_timeout"  # there was no answer in the action's time


NOT_CARRIED_OUT = frozenset({Verdict.THROTTLED, Verdict.UNREACHED})
NOT_KNOWN = frozenset({Verdict.UNAVAILABLE, Verdict.BROKE_OFF})


def verdict_of(status: int) -> Verdict:
    """Of an answer. A redirection is one: nobody follows it to an address that no operator named."""
    if not 200 <= status <= 599:
        return Verdict.BROKE_OFF
    if status < 400:
        return Verdict.ANSWERED
    if status in TOO_MUCH:
        return Verdict.THROTTLED
    if status in OUR_KEY:
        return Verdict.REFUSED
    return Verdict.UNAVAILABLE if status in FOR_A_WHILE or status >= 500 else Verdict.ITS_FAULT


def may_send_again(verdict: Verdict, method: str, *, idempotent: bool) -> bool:
    """Never what may have been carried out, and would then be carried out twice."""
    if verdict in NOT_CARRIED_OUT:
        return True
    return verdict in NOT_KNOWN and (idempotent or method in REPEATABLE)


def pause_s(tries: int, *, asked_for_s: float | None, drawn: float) -> float:
    """Before the next request, after so many: at least what the endpoint asked for.

    `drawn`, from 0 to 1, keeps those apart that failed together.
    """
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tries - 1))
    return max(asked_for_s or 0.0, longest * (0.5 + drawn / 2))


def retry_after_s(header: str | None, *, now: datetime) -> float | None:
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
