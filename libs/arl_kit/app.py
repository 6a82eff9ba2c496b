"""The application frame of a service: problem responses, probes and service-to-service authentication."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import asyncpg
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Match

from arl_kit.http_server.request_envelope import TRACEPARENT_KEY, RequestEnvelope
from arl_kit.metrics import CONTENT_TYPE, Metrics
from arl_kit.settings import ProcessSettings
from arl_kit.telemetry import current_traceparent, trace_id_of
from arl_store.tx import FULL_DISK_S, PoolBusy, PostgresStore, is_temporary
from arl_wire.errors import (
    BadRequest,
    DatabaseDiskFull,
    FieldError,
    Internal,
    ProblemDetails,
    RequestTimeout,
    TangramError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    ValidationFailed,
)

__all__ = [
    "VERSION",
    "create_app",
    "create_metrics",
    "error_responses",
    "metrics_token_check",
    "provide_deps",
    "provided_deps",
    "require_json",
    "validation_failed",
]

DepsT = TypeVar("DepsT")
_DEPS = "deps"

VERSION = "0.1.0"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_SHOWN_CHARACTERS = 300
MAX_AGE_S = 300.0
RETRY_AFTER = {"Retry-After": {"description": "Seconds after which to try again", "schema": {"type": "integer"}}}
NO_TELEMETRY = TelemetryConfig(tracing=False, metrics=False, logs=False, operation_spans=False, auto_configure=False)
"""Telemetry of FastAPI is off: spans come from rows when an action settles, and errors may quote client data."""
CONNECTION_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    PoolBusy,
    OSError,
    TimeoutError,
)
"""Exceptions that a lost database connection may raise; `is_temporary` decides for each of them."""
_DATABASE_UNREACHABLE = "the database is not reachable"
_DISK_FULL = "the disk of the database is full; free space there, then try again"

log = logging.getLogger(__name__)


class _NameConvertor(StringConvertor):
    """A path parameter without a colon, such as `{id:name}`, so that `{id}:verb` is the path of another route."""

    regex = "[^/:]+"


register_url_convertor("name", _NameConvertor())

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
ReadinessCheck = Callable[[float], Awaitable[str | None]]


def create_app(
    *,
    title: str,
    lifespan: Lifespan,
    ready: ReadinessCheck,
    max_body_bytes: int | Mapping[str, int],
    metrics: Metrics,
    body_timeout_s: float = 30.0,
    public: bool = False,
    scrape_dependencies: Sequence[Any] = (),
) -> FastAPI:
    """Create the FastAPI application of a service. Only a public app publishes its OpenAPI document.

    Args:
        ready: Returns None, or what is missing. It receives the maximum age of its database check in seconds.
        max_body_bytes: One limit, or limits by regular expression of the path. The first match counts.
        body_timeout_s: Seconds for a body, plus one second for each 64 KiB.
        scrape_dependencies: Dependencies that refuse callers who may not read the metrics.
    """
    app = FastAPI(
        title=title,
        version=VERSION,
        lifespan=lifespan,
        openapi_url="/openapi.json" if public else None,
        docs_url=None,  # FastAPI's page loads its scripts from another host
        redoc_url=None,
        separate_input_output_schemas=False,
        telemetry=NO_TELEMETRY,
        redirect_slashes=False,  # a redirect would build `Location` from the client's `Host`
    )
    bounds = {"": max_body_bytes} if isinstance(max_body_bytes, int) else max_body_bytes
    app.add_middleware(
        RequestEnvelope,
        bounds=bounds,
        body_timeout_s=body_timeout_s,
        limit_json=public,
        metrics=metrics,
        too_large=_too_large,
        respond=_respond,
    )
    full_disk = _FullDisk()
    app.add_exception_handler(TangramError, full_disk.on_tangram_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for lost in CONNECTION_ERRORS:
        app.add_exception_handler(lost, full_disk.on_database_error)
    app.add_exception_handler(Exception, _on_unexpected_error)
    _add_probes(app, ready, full_disk)
    _add_metrics(app, metrics, scrape_dependencies)
    return app


def create_metrics(service: str, store: PostgresStore) -> Metrics:
    """Return the metrics that every service has; the service adds its specific metrics."""
    metrics = Metrics()
    metrics.describe_process(service=service, version=VERSION)
    failures = metrics.counter("pool_acquire_failures", "Failed attempts to get a database connection in time")
    metrics.track_total(failures, lambda: store.acquire_failures)
    return metrics


def metrics_token_check(settings: ProcessSettings) -> Callable[[Request], Awaitable[None]]:
    """Return the dependency that refuses requests to `/metrics` without the installation's metrics token."""
    known = settings.metrics_token_hash

    async def check(request: Request) -> None:
        """Compare the bearer token. Raises `Unauthenticated`."""
        if known is None:
            raise Unauthenticated(
                "/metrics is closed: set TANGRAM_METRICS_TOKEN_HASH of this service to the SHA-256 of a token"
            )
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not compare_digest(sha256(token.encode()).hexdigest(), known):
            raise Unauthenticated(
                "/metrics needs `Authorization: Bearer` with the token in the file metrics_token of the state directory"
            )

    return check


def provide_deps(app: FastAPI, deps: object) -> None:
    """Attach a service's typed dependencies to its application. `provided_deps` reads them."""
    setattr(app.state, _DEPS, deps)


def provided_deps(app: FastAPI, cls: type[DepsT]) -> DepsT:
    """Return the dependencies that `provide_deps` attached. Raises `TypeError` if they are of another class."""
    deps = getattr(app.state, _DEPS, None)
    if not isinstance(deps, cls):
        raise TypeError(f"the application has no dependencies of type {cls.__name__}")
    return deps


async def require_json(request: Request) -> None:
    """Raise `UnsupportedMediaType` for a body that is not JSON, so that the error names the content type."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = given == "application/json" or (given.startswith("application/") and given.endswith("+json"))
    if not is_json and await request.body():
        message = f"is {_printable(given)!r}" if given else "is missing"
        detail = f"the body must be application/json, and its content-type {message}"
        raise UnsupportedMediaType(detail, errors=[FieldError(field="header.Content-Type", message=message)])


def error_responses(*errors: type[TangramError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: each status with the problem schema and its possible codes."""
    by_status: dict[int | str, list[str]] = {}
    for error in errors:
        by_status.setdefault(error.status, []).append(error.code)
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {
            "description": ", ".join(codes),
            "content": {"application/problem+json": {"schema": schema}},
            **({"headers": RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status, codes in by_status.items()
    }


def validation_failed(errors: Sequence[Any]) -> ValidationFailed:
    """Return one error for pydantic's list of errors; it never echoes values."""
    fields = [FieldError(field=_path(error), message=_message(error)) for error in errors[:50]]
    first = fields[0] if fields else FieldError(field="body", message="is not valid")
    return ValidationFailed(f"{first.field}: {first.message}", errors=fields)


def _too_large(detail: str) -> TangramError:
    return _body_error(TooLarge, detail)


def _body_error(cls: type[TangramError], detail: str) -> TangramError:
    error = cls(detail, errors=[FieldError(field="body", message=detail)])
    if cls is RequestTimeout:
        # Close only here: a close while the client still sends resets the connection before the client reads the
        # response.
        error.headers["connection"] = "close"
    return error


def _respond(error: TangramError, traceparent: str | None) -> JSONResponse:
    problem = error.to_problem(trace_id=trace_id_of(traceparent))
    headers = dict(error.headers)
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(problem.retry_after_s)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return _problem_response(problem, headers, error.extensions)


def _problem_response(
    problem: ProblemDetails, headers: dict[str, str] | None = None, extensions: Mapping[str, object] | None = None
) -> JSONResponse:
    content = {**(extensions or {}), **problem.model_dump(exclude_none=True)}
    return JSONResponse(content, problem.status, headers, media_type="application/problem+json")


class _FullDisk:
    """Whether statements failed lately because the disk of Postgres is full. Postgres itself still answers then."""

    def __init__(self) -> None:
        self._seen_at: float | None = None

    def is_recent(self) -> bool:
        return self._seen_at is not None and time.monotonic() - self._seen_at < FULL_DISK_S

    async def on_tangram_error(self, request: Request, error: Exception) -> Response:
        """Return the problem of the error, which another service may have sent."""
        if not isinstance(error, TangramError):
            raise error
        if isinstance(error, DatabaseDiskFull):
            self._seen_at = time.monotonic()
        return _respond(error, current_traceparent.get())

    async def on_database_error(self, request: Request, error: Exception) -> Response:
        """Return 507 if the disk is full, and else the response for other errors of the database."""
        if not isinstance(error, asyncpg.DiskFullError):
            return await _on_database_error(request, error)
        log.error("%s: %s", _DISK_FULL, error)
        return await self.on_tangram_error(request, DatabaseDiskFull(_DISK_FULL))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return _respond(validation_failed(error.errors()), current_traceparent.get())


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Return the problem for requests that the framework refuses, such as unknown paths and wrong methods."""
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed_methods(request))
    for cls in (BadRequest, RequestTimeout, TooLarge):
        # The framework uses these statuses only while it reads a body.
        if error.status_code == cls.status:
            return _respond(_body_error(cls, str(error.detail)), current_traceparent.get())
    title = HTTPStatus(error.status_code).phrase
    return _problem_response(
        ProblemDetails(
            title=title,
            status=error.status_code,
            detail=f"{request.method} {request.url.path}: {error.detail}",
            code=title.lower().replace(" ", "_"),
            trace_id=trace_id_of(current_traceparent.get()),
        ),
        headers,
    )


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes of this path; the framework names only those of the first route."""
    scope = dict(request.scope)
    return [method for method in METHODS if _has_route(request.app.router.routes, scope | {"method": method})]


def _has_route(routes: Sequence[Any], scope: dict[str, Any]) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


async def _on_database_error(request: Request, error: Exception) -> Response:
    """Return 503 if Postgres is temporarily unreachable.

    Other database errors are defects and are logged with their cause.
    """
    if not is_temporary(error):
        return await _on_unexpected_error(request, error)
    what = "all database connections are in use" if isinstance(error, PoolBusy) else _DATABASE_UNREACHABLE
    log.warning("%s: %s", what, type(error).__name__)
    return _respond(Unavailable(f"{what}; try again", retry_after_s=1), current_traceparent.get())


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    # This handler runs outside the envelope. Restore the trace context so that the trace id finds this log line.
    current_traceparent.set(request.scope.get(TRACEPARENT_KEY))
    log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
    detail = "an internal error occurred; the logs of the service have details under this trace_id"
    return _respond(Internal(detail), request.scope.get(TRACEPARENT_KEY))


def _add_probes(app: FastAPI, ready: ReadinessCheck, full_disk: _FullDisk) -> None:
    @app.get("/livez", include_in_schema=False)
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz(max_age_s: Annotated[float, Query(ge=0, le=MAX_AGE_S)] = 0.0) -> dict[str, str]:
        """Report readiness. Frequent health checks can pass `max_age_s` to accept a cached database check."""
        try:
            missing = await ready(max_age_s)
        except asyncpg.DiskFullError:
            missing = _DISK_FULL
        if missing is None and full_disk.is_recent():
            missing = _DISK_FULL
        if missing is not None:
            raise Unavailable(missing, retry_after_s=1)
        return {"status": "ok"}

    @app.get("/version", include_in_schema=False)
    async def version() -> dict[str, str]:
        return {"version": VERSION}


def _add_metrics(app: FastAPI, metrics: Metrics, dependencies: Sequence[Any]) -> None:
    @app.get("/metrics", include_in_schema=False, dependencies=[Depends(each) for each in dependencies])
    async def scrape() -> Response:
        return Response(await metrics.exposition(), headers={"content-type": CONTENT_TYPE})


def _path(error: Any) -> str:
    if error["type"] == "json_invalid":
        return "body"
    parts = [str(part) for part in error["loc"]]
    if parts and parts[0] == "body":
        parts = parts[1:]
    return _printable(".".join(parts) or "body")


def _message(error: Any) -> str:
    if error.get("type") == "json_invalid":
        return f"is not valid JSON: {error.get('ctx', {}).get('error', 'cannot be parsed')}"
    return _printable(str(error["msg"]).removeprefix("Value error, "))


def _printable(text: str) -> str:
    """Shorten and escape client text: field names may have any length and characters that no response can encode."""
    return text[:MAX_SHOWN_CHARACTERS].encode(errors="backslashreplace").decode()
