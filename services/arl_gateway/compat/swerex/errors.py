"""Errors for SWE-ReX's client: status 511 and the path of an exception class, which it constructs with the message
only.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from arl_core.domain.states import ActionOutcome
from arl_gateway.compat.swerex.models import SwerexErrorResponse, SwerexExceptionTransfer
from arl_kit.fast_route import NOBODY
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.action import Action

__all__ = [
    "ERROR_STATUS",
    "SwerexError",
    "SwerexRoute",
    "not_implemented",
    "os_error",
    "parse_os_error",
    "raise_if_infra_error",
]

ERROR_STATUS = 511
EXCEPTIONS_MODULE = "swerex.exceptions"
BASE_CLASS = "SwerexException"
INFRA_MESSAGES = {
    ActionOutcome.INFRA_ERROR: "an infrastructure error ended the command",
    ActionOutcome.DEADLINE_IN_QUEUE: "the command could not start in time",
    ActionOutcome.CANCELLED: "the command was cancelled",
}
OS_ERRORS = {
    2: ("FileNotFoundError", "No such file or directory"),
    13: ("PermissionError", "Permission denied"),
    20: ("NotADirectoryError", "Not a directory"),
    21: ("IsADirectoryError", "Is a directory"),
    28: ("OSError", "No space left on device"),
    30: ("OSError", "Read-only file system"),
    36: ("OSError", "File name too long"),
    40: ("OSError", "Too many levels of symbolic links"),
    122: ("OSError", "Disk quota exceeded"),
}
DASH_ERRORS = {"Directory nonexistent": 2}


class SwerexError(Exception):
    """An error that SWE-ReX's client raises.

    `class_name` is one of SWE-ReX's own classes, or the full path of another class.
    """

    def __init__(self, message: str, class_name: str = BASE_CLASS, **extra_info: Any) -> None:
        super().__init__(message)
        self.transfer = SwerexExceptionTransfer(
            message=message,
            class_path=class_name if "." in class_name else f"{EXCEPTIONS_MODULE}.{class_name}",
            extra_info=extra_info,
        )


class SwerexRoute(OptionalNullRoute):
    """A route that returns each `SwerexError` for the client to raise. Invalid keys and bodies stay plain HTTP
    errors.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler; it returns each `SwerexError` with status 511."""
        handle = super().get_route_handler()

        async def handle_raised(request: Request) -> Response:
            """Handle the request and return a `SwerexError` with status 511."""
            try:
                return await handle(request)
            except SwerexError as raised:
                return JSONResponse(SwerexErrorResponse(swerexception=raised.transfer).model_dump(), ERROR_STATUS)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle_raised


def not_implemented(feature: str) -> SwerexError:
    """Return the error of a feature of SWE-ReX that this runtime does not have."""
    return SwerexError(f"not implemented: {feature}", code="not_implemented")


def raise_if_infra_error(action: Action) -> None:
    """Raise `SwerexError` for an outcome that is not the command's, with its reason."""
    if action.outcome in INFRA_MESSAGES:
        why = ": ".join(filter(None, (action.reason, action.message)))
        message = f"{action.outcome}: {INFRA_MESSAGES[action.outcome]}{f' ({why})' if why else ''}"
        raise SwerexError(
            message, outcome=str(action.outcome), reason=action.reason, action=str(action.id), is_infrastructure=True
        )


def os_error(number: int, path: str) -> SwerexError:
    """Return the error with Python's message for an errno."""
    name, text = OS_ERRORS[number]
    return SwerexError(f"[Errno {number}] {text}: {path!r}", f"builtins.{name}")


def parse_os_error(stderr: str, path: str) -> SwerexError | None:
    """Return the file error that a program of the C locale printed; None if the text is unknown."""
    texts = {text: number for number, (_, text) in OS_ERRORS.items()} | DASH_ERRORS
    found = next((number for text, number in texts.items() if stderr.rstrip().endswith(text)), None)
    return os_error(found, path) if found is not None else None
