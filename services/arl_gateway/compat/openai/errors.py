"""Errors in OpenAI's format, added to the usual problem details."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from arl_gateway.compat.blocking_score import CompatRoute
from arl_kit.app import validation_failed
from arl_wire.errors import BadRequest, FieldError, RequestTimeout, TangramError, TooLarge, Unprocessable

__all__ = ["OpenAiErrorRoute", "OpenAiRoute"]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}
"""OpenAI's error types by status; all others are `server_error`."""


class OpenAiRoute(CompatRoute):
    """A route whose errors include OpenAI's `error`. Invalid requests return 400."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it adds OpenAI's `error` to errors."""
        handle = super().get_route_handler()

        async def handle_openly(request: Request) -> Response:
            """Handle the request and add OpenAI's `error` to errors."""
            try:
                return await handle(request)
            except Unprocessable as error:
                raise _add_openai_error(BadRequest(error.detail, errors=error.errors)) from error
            except TangramError as error:
                raise _add_openai_error(error) from error
            except HTTPException as error:
                raise _add_openai_error(_body_error(error)) from error

        return handle_openly


class OpenAiErrorRoute(APIRoute):
    """A route whose errors include OpenAI's `error`; their status stays unchanged."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it adds OpenAI's `error` to errors."""
        handle = super().get_route_handler()

        async def handle_openly(request: Request) -> Response:
            """Handle the request and add OpenAI's `error` to errors."""
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise _add_openai_error(validation_failed(error.errors())) from error
            except TangramError as error:
                raise _add_openai_error(error) from error
            except HTTPException as error:
                raise _add_openai_error(_body_error(error)) from error

        return handle_openly


def _body_error(error: HTTPException) -> TangramError:
    """Return the typed error of a body that cannot be read. Raises the error if it is another one."""
    for cls in (BadRequest, RequestTimeout, TooLarge):
        if error.status_code == cls.status:
            return cls(str(error.detail), errors=[FieldError(field="body", message=str(error.detail))])
    raise error


def _add_openai_error(error: TangramError) -> TangramError:
    param = error.errors[0].field if error.errors else None
    kind = ERROR_TYPES.get(error.status, "server_error")
    error.extensions = {"error": {"message": error.detail, "type": kind, "param": param, "code": error.code}}
    return error
