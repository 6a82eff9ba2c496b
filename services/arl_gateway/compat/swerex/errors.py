"""What SWE-ReX's client raises: status 511 and the path of a class, which it makes with the message alone."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from arl_core.states import Outcome
from arl_gateway.compat.swerex.bodies import Raised, Transferred
from arl_kit.fast_route import NOBODY
from arl_wire.actions import Action

__all__ = ["STATUS", "RaisedThere", "RaisingRoute", "not_done_here", "os_error", "os_error_of", "unless_ours"]

STATUS = 511
SWEREX = "swerex.exceptions"
ANY = "SwerexException"
OURS = {
    Outcome.INFRA_ERROR: "the command failed by no fault of its own",
    Outcome.DEADLINE_IN_QUEUE: "the command did not begin in time",
    Outcome.CANCELLED: "the command was cancelled",
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
DASH_SAYS = {"Directory nonexistent": 2}


class RaisedThere(Exception):
    """`of` is one of SWE-ReX's own classes, or the whole path of another's."""

    def __init__(self, message: str, of: str = ANY, **extra_info: Any) -> None:
        super().__init__(message)
        self.transferred = Transferred(
            message=message, class_path=of if "." in of else f"{SWEREX}.{of}", extra_info=extra_info
        )


class RaisingRoute(APIRoute):
    """What an endpoint raises for the client goes there. Refusals of keys and of bodies stay plain HTTP, as theirs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_raised(request: Request) -> Response:
            try:
                return await handle(request)
            except RaisedThere as raised:
                return JSONResponse(Raised(swerexception=raised.transferred).model_dump(), STATUS)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle_raised


def not_done_here(what: str) -> RaisedThere:
    return RaisedThere(f"not implemented: {what}", code="not_implemented")


def unless_ours(action: Action) -> None:
    """Raises for an outcome that says nothing about the command, with what it says about us."""
    if action.outcome in OURS:
        why = ": ".join(filter(None, (action.reason, action.message)))
        message = f"{action.outcome}: {OURS[action.outcome]}{f' ({why})' if why else ''}"
        raise RaisedThere(
            message, outcome=str(action.outcome), reason=action.reason, action=str(action.id), is_infrastructure=True
        )


def os_error(number: int, path: str) -> RaisedThere:
    """As Python says it."""
    name, text = OS_ERRORS[number]
    return RaisedThere(f"[Errno {number}] {text}: {path!r}", f"builtins.{name}")


def os_error_of(said: str, path: str) -> RaisedThere | None:
    """Of a program in the C locale that could not do something with a file; None where it is not known what."""
    texts = {text: number for number, (_, text) in OS_ERRORS.items()} | DASH_SAYS
    found = next((number for text, number in texts.items() if said.rstrip().endswith(text)), None)
    return os_error(found, path) if found is not None else None
