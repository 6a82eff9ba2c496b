"""Errors that cross HTTP: one class per error that a caller can act on, shared by server and SDK.

TangramError
├── BadRequest 400, Unauthenticated 401, Forbidden 403, NotFound 404, RequestTimeout 408,
│   TooLarge 413, UnsupportedMediaType 415
├── Conflict 409
│   ├── NotRunning              the action does not run yet, or no longer runs
│   └── InputClosed             the action reads no input, or no more input
├── Unprocessable 422
│   ├── ValidationFailed        errors[] name the fields
│   ├── DemandImpossible        no node could ever run the action
│   ├── RequirementNotEnforced  no node enforces what the action requires
│   ├── TemplateNotFound         no node has the template
│   ├── RewardServiceNotFound          no node has the reward service
│   ├── EndpointNotFound         no broker has the endpoint
│   ├── NotScored               an item has no score
│   ├── GangRefused             another action of the gang is refused
│   └── IdempotencyKeyReused    same key, another body
├── TooManyRequests 429
│   ├── QueueFull               the task has too many queued actions
│   ├── RateLimited             the key makes too many requests
│   └── InputFull               the program has not read the earlier input
├── Unavailable 503             try again; retry_after_s says when
├── GatewayTimeout 504          the action continues; repeat the same request to resume waiting
└── Internal 500

The body is an RFC 9457 problem: `application/problem+json`.
"""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BadRequest",
    "Conflict",
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
    "ProblemDetails",
    "QueueFull",
    "RateLimited",
    "RequestTimeout",
    "RequirementNotEnforced",
    "RewardServiceNotFound",
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

    field: str = Field(description="Where it is, as a dotted path into the body, `query.` or `header.`")
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
    retry_after_s: int | None = Field(default=None, description="As in Retry-After, also for one item of a batch")


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
    code, status, title = "bad_request", 400, "Bad request"


class Unauthenticated(TangramError):
    code, status, title = "unauthenticated", 401, "Authentication needed"


class Forbidden(TangramError):
    code, status, title = "forbidden", 403, "Not allowed"


class NotFound(TangramError):
    code, status, title = "not_found", 404, "Not found"


class Conflict(TangramError):
    code, status, title = "conflict", 409, "Conflicts with what is there"


class NotRunning(Conflict):
    code, title = "not_running", "The action does not run"


class NotSettled(Conflict):
    """Raised by `Action.ok` and similar properties of the SDK; no service returns it."""

    code, title = "not_settled", "The action has not settled yet"


class InputClosed(Conflict):
    code, title = "input_closed", "The action reads no more input"


class TooLarge(TangramError):
    code, status, title = "too_large", 413, "Request too large"


class RequestTimeout(TangramError):
    code, status, title = "request_timeout", 408, "The request came too slowly"


class UnsupportedMediaType(TangramError):
    code, status, title = "unsupported_media_type", 415, "The body is not in a format that is read here"


class Unprocessable(TangramError):
    code, status, title = "unprocessable", 422, "Unprocessable request"


class ValidationFailed(Unprocessable):
    code, title = "validation_failed", "Invalid request"


class DemandImpossible(Unprocessable):
    code, title = "demand_impossible", "No node can ever satisfy this demand"


class RequirementNotEnforced(Unprocessable):
    code, title = "requirement_not_enforced", "No node enforces what the action requires"


class TemplateNotFound(Unprocessable):
    code, title = "template_not_found", "No node has this template"


class RewardServiceNotFound(Unprocessable):
    code, title = "reward_service_not_found", "No node has this reward service"


class EndpointNotFound(Unprocessable):
    code, title = "endpoint_not_found", "No broker has this endpoint"


class NotScored(Unprocessable):
    code, title = "not_scored", "An item has no score"


class GangRefused(Unprocessable):
    code, status, title = "gang_refused", 422, "Another of its gang is refused"


class IdempotencyKeyReused(Unprocessable):
    code, title = "idempotency_key_reused", "Idempotency-Key was used with another body"


class TooManyRequests(TangramError):
    code, status, title = "too_many_requests", 429, "Too many requests"


class QueueFull(TooManyRequests):
    code, title = "queue_full", "The task's queue is full"


class RateLimited(TooManyRequests):
    code, title = "rate_limited", "Too many requests with this API key"


class InputFull(TooManyRequests):
    code, title = "input_full", "The program has not read what was sent before"


class Unavailable(TangramError):
    code, status, title = "unavailable", 503, "Temporarily unavailable"


class GatewayTimeout(TangramError):
    code, status, title = "gateway_timeout", 504, "It has not ended yet"


class Internal(TangramError):
    code, status, title = "internal", 500, "Internal error"


def error_from_problem(problem: ProblemDetails, *, retry_after_s: float | None = None) -> TangramError:
    """Return the error for a problem; an unknown code becomes the class of its status."""
    ours = [cls for cls in _subclasses(TangramError) if cls.__module__ == __name__]
    known = {cls.code: cls for cls in ours}
    by_status = {cls.status: cls for cls in reversed(ours) if TangramError in cls.__bases__}
    cls = known.get(problem.code) or by_status.get(problem.status) or TangramError
    error = cls(problem.detail, errors=problem.errors, retry_after_s=retry_after_s or problem.retry_after_s)
    error.trace_id = problem.trace_id
    return error


def _subclasses(cls: type[TangramError]) -> list[type[TangramError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _subclasses(sub))]
