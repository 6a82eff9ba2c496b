"""Errors that cross HTTP: one class per error that a caller can act on, shared by server and SDK.

TangramError
├── BadRequest 400, Unauthenticated 401, Forbidden 403, NotFound 404, RequestTimeout 408,
│   TooLarge 413, UnsupportedMediaType 415
├── Conflict 409
│   ├── NotRunning              the action has not started or has ended
│   └── InputClosed             the action accepts no input, or no more input
├── Unprocessable 422
│   ├── ValidationFailed        errors[] name the fields
│   ├── DemandImpossible        no node could ever run the action
│   ├── RequirementNotEnforced  no node enforces what the action requires
│   ├── TemplateNotFound        no node has the template
│   ├── RewardServiceNotFound   no node has the reward service
│   ├── EndpointNotFound        no broker has the endpoint
│   ├── NotScored               an item has no score
│   ├── GangRefused             another action of the gang is refused
│   └── IdempotencyKeyReused    same key, another body
├── TooManyRequests 429
│   ├── QueueFull               the task has too many queued actions
│   ├── RateLimited             the key makes too many requests
│   └── InputFull               the program has not read the earlier input
├── Unavailable 503             try again; retry_after_s says when
│   └── CellUnavailable         the cell of the request does not answer; other cells are not affected
│       └── CellBusy            the router has no free connection to the cell
├── ServerFailed 502            the server in the environment sent no valid response
│   └── NothingListens          no server listens on the port
├── GatewayTimeout 504          the action continues; repeat the same request to resume waiting
├── DatabaseDiskFull 507        the disk of Postgres is full; free space there
└── Internal 500

The body is an RFC 9457 problem: `application/problem+json`.
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ERROR_CODES",
    "BadRequest",
    "CellBusy",
    "CellUnavailable",
    "Conflict",
    "DatabaseDiskFull",
    "DemandImpossible",
    "EndpointNotFound",
    "FieldError",
    "Forbidden",
    "GangRefused",
    "GatewayTimeout",
    "IdempotencyKeyReused",
    "InputClosed",
    "InputFull",
    "Internal",
    "NotFound",
    "NotRunning",
    "NotScored",
    "NotSettled",
    "NothingListens",
    "ProblemDetails",
    "QueueFull",
    "RateLimited",
    "RequestTimeout",
    "RequirementNotEnforced",
    "RewardServiceNotFound",
    "ServerFailed",
    "TangramError",
    "TemplateNotFound",
    "TooLarge",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "Unprocessable",
    "UnsupportedMediaType",
    "ValidationFailed",
    "error_from_problem",
]


class FieldError(BaseModel):
    """An error of one field."""

    field: str = Field(
        description="Dotted path of the field in the body, or a path that begins with `query.` or `header.`"
    )
    message: str


class ProblemDetails(BaseModel):
    """RFC 9457 problem details, with a stable `code`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Invalid request",
                    "status": 422,
                    "code": "validation_failed",
                    "detail": "demand.cpu: Input should be greater than 0",
                    "errors": [{"field": "demand.cpu", "message": "Input should be greater than 0"}],
                }
            ]
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = Field(default_factory=list)
    trace_id: str | None = None
    retry_after_s: int | None = Field(
        default=None, description="Seconds after which to try again, as in the header Retry-After"
    )


class TangramError(Exception):
    """The base class of all errors that a service returns."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Error"

    def __init__(
        self, detail: str, *, errors: list[FieldError] | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors or []
        self.retry_after_s = retry_after_s
        self.trace_id: str | None = None
        self.headers: dict[str, str] = {}
        """Additional headers of the response."""
        self.extensions: dict[str, object] = {}
        """Additional members of the problem document, for clients that expect another error format."""

    def to_problem(self, *, trace_id: str | None = None) -> ProblemDetails:
        """Return the problem document for a response; `trace_id` is that of the request."""
        return ProblemDetails(
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            errors=self.errors,
            trace_id=trace_id,
            retry_after_s=max(1, round(self.retry_after_s)) if self.retry_after_s is not None else None,
        )


class BadRequest(TangramError):
    """The request is malformed, such as a wrong cursor or header."""

    code, status, title = "bad_request", 400, "Bad request"


class Unauthenticated(TangramError):
    """The request has no API key, or one that is unknown, expired or revoked."""

    code, status, title = "unauthenticated", 401, "Authentication required"


class Forbidden(TangramError):
    """The API key lacks a scope, or belongs to another project than the operation needs."""

    code, status, title = "forbidden", 403, "Access denied"


class NotFound(TangramError):
    """The resource does not exist, or belongs to another project."""

    code, status, title = "not_found", 404, "Not found"


class Conflict(TangramError):
    """The state of the resource does not allow the operation."""

    code, status, title = "conflict", 409, "Conflict with the current state"


class NotRunning(Conflict):
    """The action has not started or has ended, so that it accepts no input."""

    code, title = "not_running", "The action is not running"


class NotSettled(Conflict):
    """Raised by `Action.ok` and similar properties of the SDK; no service returns it."""

    code, title = "not_settled", "The action has not settled yet"


class InputClosed(Conflict):
    """The action was submitted without `stdin_open`, or its input has ended."""

    code, title = "input_closed", "The action accepts no more input"


class TooLarge(TangramError):
    """The request, or the content that it asks for, exceeds a size limit."""

    code, status, title = "too_large", 413, "Request too large"


class RequestTimeout(TangramError):
    """The body of the request was not received in time."""

    code, status, title = "request_timeout", 408, "The request was not received in time"


class UnsupportedMediaType(TangramError):
    """The content type of the body is not the one that the route reads."""

    code, status, title = "unsupported_media_type", 415, "The format of the body is not supported"


class Unprocessable(TangramError):
    """The request is well-formed, but its content cannot be accepted."""

    code, status, title = "unprocessable", 422, "Unprocessable request"


class ValidationFailed(Unprocessable):
    """Fields of the request are invalid; `errors` lists them."""

    code, title = "validation_failed", "Invalid request"


class DemandImpossible(Unprocessable):
    """No node, even if idle, could ever run the action."""

    code, title = "demand_impossible", "No node can ever run this action"


class RequirementNotEnforced(Unprocessable):
    """No node enforces the limits that the action requires."""

    code, title = "requirement_not_enforced", "No node enforces what the action requires"


class TemplateNotFound(Unprocessable):
    """No node has the template of the environment."""

    code, title = "template_not_found", "No node has this template"


class RewardServiceNotFound(Unprocessable):
    """The reward service is neither registered nor on a node."""

    code, title = "reward_service_not_found", "No node has this reward service"


class EndpointNotFound(Unprocessable):
    """No broker has the endpoint."""

    code, title = "endpoint_not_found", "No broker has this endpoint"


class NotScored(Unprocessable):
    """An item has no score, and the protocol cannot express that in another way."""

    code, title = "not_scored", "An item has no score"


class GangRefused(Unprocessable):
    """The action is valid, but another action of its gang is refused."""

    code, status, title = "gang_refused", 422, "Another action of the gang is refused"


class IdempotencyKeyReused(Unprocessable):
    """The Idempotency-Key belongs to a request with another body."""

    code, title = "idempotency_key_reused", "The Idempotency-Key was used with another body"


class TooManyRequests(TangramError):
    """A limit is reached; try again after `retry_after_s`."""

    code, status, title = "too_many_requests", 429, "Too many requests"


class QueueFull(TooManyRequests):
    """The queue of the task has reached its maximum number of queued actions."""

    code, title = "queue_full", "The task's queue is full"


class RateLimited(TooManyRequests):
    """The API key has sent too many requests in its window."""

    code, title = "rate_limited", "Too many requests with this API key"


class InputFull(TooManyRequests):
    """The program has not read enough of its earlier input."""

    code, title = "input_full", "The program has not read the earlier input"


class Unavailable(TangramError):
    """A service or a node is temporarily unavailable; try again after `retry_after_s`."""

    code, status, title = "unavailable", 503, "Temporarily unavailable"


class CellUnavailable(Unavailable):
    """The cell in which the resource is stored does not answer. Only a router of several cells returns it."""

    code, title = "cell_unavailable", "A cell does not answer"


class CellBusy(CellUnavailable):
    """All connections of the router to the cell are in use. The request was not sent."""

    code, title = "cell_busy", "Too many requests to a cell are open"


class ServerFailed(TangramError):
    """A server in an environment did not send a valid response."""

    code, status, title = "server_failed", 502, "The server in the environment failed"


class NothingListens(ServerFailed):
    """No server listens on a port of an environment. Start it, or try again when it is ready."""

    code, title = "nothing_listens", "No server listens on the port"


class GatewayTimeout(TangramError):
    """The action has not ended in time and continues; repeat the same request to wait further."""

    code, status, title = "gateway_timeout", 504, "The action has not ended yet"


class DatabaseDiskFull(TangramError):
    """The disk of Postgres is full, so nothing can be stored. An operator must free space there."""

    code, status, title = "database_disk_full", 507, "The disk of the database is full"


class Internal(TangramError):
    """An internal error occurred; the logs have details under the trace id."""

    code, status, title = "internal", 500, "Internal error"


def error_from_problem(problem: ProblemDetails, *, retry_after_s: float | None = None) -> TangramError:
    """Return the error for a problem; an unknown code becomes the class of its status."""
    known = {cls.code: cls for cls in _OWN_ERRORS}
    by_status = {cls.status: cls for cls in reversed(_OWN_ERRORS) if TangramError in cls.__bases__}
    cls = known.get(problem.code) or by_status.get(problem.status) or TangramError
    error = cls(problem.detail, errors=problem.errors, retry_after_s=retry_after_s or problem.retry_after_s)
    error.trace_id = problem.trace_id
    return error


def _subclasses(cls: type[TangramError]) -> list[type[TangramError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]


_OWN_ERRORS = tuple(_subclasses(TangramError))
"""The errors of this module. Other modules may define subclasses later."""
ERROR_CODES = frozenset(cls.code for cls in _OWN_ERRORS)
"""The values of `code` in problems."""
