"""envd's filesystem service."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from arl_gateway.compat.e2b.access import ENVD_PREFIX
from arl_gateway.compat.e2b.errors import GuestCallError, RpcRoute, not_supported
from arl_gateway.compat.e2b.process_routes import ChannelDep, rpc_message

__all__ = ["router"]

OPERATIONS = {"Stat": "stat", "MakeDir": "make_dir", "Remove": "remove", "ListDir": "list", "Move": "move"}

router = APIRouter(prefix=f"{ENVD_PREFIX}/filesystem.Filesystem", route_class=RpcRoute, include_in_schema=False)


@router.post("/{method}")
async def call_filesystem(method: str, request: Request, channel: ChannelDep) -> Response:
    """Perform an operation on files."""
    message = await rpc_message(request)
    if (operation := OPERATIONS.get(method)) is None:
        raise not_supported(f"filesystem.Filesystem/{method[:64]}")
    if method == "Move":
        arguments: dict[str, Any] = {"path": message.get("source"), "destination": message.get("destination")}
    else:
        arguments = {"path": message.get("path", "")}
    if wrong := [name for name, value in arguments.items() if not isinstance(value, str) or "\0" in value]:
        raise GuestCallError("invalid_argument", f"{wrong[0]} must be a path")
    if method == "ListDir":
        depth = message.get("depth", 1)
        arguments["depth"] = depth if isinstance(depth, int) else 1
    return JSONResponse(await channel.call(operation, arguments))
