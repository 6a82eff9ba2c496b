"""Errors in the formats of E2B: JSON with a number for the control plane and files, with a word for RPC."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from arl_kit.app import validation_failed
from arl_kit.fast_route import NOBODY
from arl_wire.errors import TangramError

__all__ = [
    "ControlRoute",
    "GuestCallError",
    "RpcRoute",
    "SandboxAbsent",
    "not_supported",
    "rpc_error_body",
    "to_http_status",
]

HTTP_STATUS = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""HTTP status of each code of the Connect protocol."""
RPC_CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "failed_precondition",
    413: "resource_exhausted",
    422: "invalid_argument",
    429: "resource_exhausted",
    503: "unavailable",
    504: "deadline_exceeded",
}


class GuestCallError(Exception):
    """A failed operation in a sandbox, with a code of the Connect protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SandboxAbsent(Exception):
    """A sandbox that has ended or is paused. E2B's clients recognize the text `was not found`."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__("The sandbox was not found")
        self.sandbox_id = sandbox_id

    def response(self) -> Response:
        """Return the response that E2B's proxy gives for such a sandbox."""
        return JSONResponse({"sandboxId": self.sandbox_id, "message": str(self), "code": 502}, 502)


def not_supported(feature: str) -> GuestCallError:
    """Return the error of a feature of E2B that this server does not have."""
    return GuestCallError("unimplemented", f"not supported by this server: {feature}")


def to_http_status(code: str) -> int:
    """Return the HTTP status of a Connect code."""
    return HTTP_STATUS.get(code, 500)


def rpc_error_body(error: GuestCallError | TangramError) -> dict[str, str]:
    """Return the JSON of an RPC error."""
    if isinstance(error, GuestCallError):
        return {"code": error.code, "message": str(error)}
    return {"code": RPC_CODES.get(error.status, "internal"), "message": error.detail}


class ControlRoute(APIRoute):
    """A route of the control plane or of files: errors are `{"code": STATUS, "message": TEXT}`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it converts each error."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            """Handle the request and convert an error."""
            try:
                return await handle(request)
            except SandboxAbsent as absent:
                return absent.response()
            except GuestCallError as error:
                return _numbered(to_http_status(error.code), str(error))
            except (RequestValidationError, ValidationError) as error:
                return _numbered(400, validation_failed(list(error.errors())).detail)
            except TangramError as error:
                headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s else {}
                return _numbered(400 if error.status == 422 else error.status, error.detail, headers)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle_errors


class RpcRoute(APIRoute):
    """A unary method of envd: errors are `{"code": WORD, "message": TEXT}`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it converts each error."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            """Handle the request and convert an error."""
            try:
                return await handle(request)
            except SandboxAbsent as absent:
                return absent.response()
            except GuestCallError as error:
                return JSONResponse(rpc_error_body(error), to_http_status(error.code))
            except TangramError as error:
                return JSONResponse(rpc_error_body(error), error.status)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle_errors


def _numbered(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"code": status, "message": message}, status, headers=headers)
