"""E2B's control plane: sandboxes by id. Both generations of paths are served."""

from datetime import datetime
from typing import Annotated
from urllib.parse import parse_qsl, unquote
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import JSONResponse

from arl_gateway.compat.e2b.errors import ControlRoute, not_supported
from arl_gateway.compat.e2b.models import (
    ConnectRequest,
    CreateSandboxRequest,
    SandboxTimeout,
    UpdateNetworkRequest,
    listed_sandbox,
    network_setting,
    new_sandbox,
)
from arl_gateway.compat.e2b.sandboxes import SandboxService
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import Reader, Writer
from arl_store.tx import Row
from arl_wire.errors import BadRequest, Conflict, FieldError, NotFound

__all__ = ["SandboxesDep", "router"]

MAX_PAGE = 100
STATES = {"running": False, "paused": True}

router = APIRouter(route_class=ControlRoute, include_in_schema=False)


async def _sandboxes(request: Request) -> SandboxService:
    return gateway_deps(request).sandboxes


SandboxesDep = Annotated[SandboxService, Depends(_sandboxes)]


@router.post("/v2/sandboxes")
@router.post("/sandboxes")
async def create_sandbox(
    request: Request, caller: Writer, sandboxes: SandboxesDep, idempotency_key: Annotated[str | None, Header()] = None
) -> Response:
    """Create a sandbox."""
    body = CreateSandboxRequest.model_validate_json(await request.body())
    if body.mcp:
        raise not_supported("the MCP gateway of a sandbox (field `mcp`)")
    if body.volumes:
        raise not_supported("volumes (field `volumeMounts`)")
    network = None
    if (body.network is not None and body.network.has_rules) or body.has_internet is False:
        network = network_setting(body.network, has_internet=body.has_internet, widest=sandboxes.widest_network)
    row = await sandboxes.create(
        caller,
        template=body.template,
        timeout_s=body.timeout,
        metadata=body.metadata,
        variables=body.variables,
        network=network,
        has_public_ports=body.network is None or body.network.has_public_ports,
        key=idempotency_key,
    )
    return JSONResponse(new_sandbox(row, sandboxes.ports.domain), 201)


@router.get("/v2/sandboxes")
@router.get("/sandboxes")
async def list_sandboxes(request: Request, caller: Reader, sandboxes: SandboxesDep) -> Response:
    """List sandboxes, by default the newest first."""
    query = request.query_params
    rows = list(
        await sandboxes.list(
            caller,
            metadata=_parse_metadata(query.get("metadata", "")),
            is_paused=_parse_state(query.get("state")),
            template=query.get("template"),
        )
    )
    if (after := query.get("startedAfter")) is not None:
        started = _parse_time(after)
        rows = [row for row in rows if row.created_at > started]
    is_ascending = query.get("order") == "asc"
    rows = rows if is_ascending else rows[::-1]
    if token := query.get("nextToken"):
        at, id = _parse_token(token)
        rows = [row for row in rows if ((row.created_at, row.id) > (at, id)) == is_ascending and row.id != id]
    limit = _parse_limit(query.get("limit"))
    headers = {"x-next-token": _token(rows[limit - 1])} if len(rows) > limit else {}
    return JSONResponse([listed_sandbox(row) for row in rows[:limit]], headers=headers)


@router.get("/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: str, caller: Reader, sandboxes: SandboxesDep) -> Response:
    """Return a sandbox, with its token if the key may run commands."""
    row = await sandboxes.get(sandbox_id, caller)
    token = {"envdAccessToken": row.access_token} if caller.has_scope("actions:write") else {}
    return JSONResponse(listed_sandbox(row) | token)


@router.delete("/sandboxes/{sandbox_id}")
async def kill_sandbox(sandbox_id: str, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """End a sandbox."""
    await sandboxes.kill(sandbox_id, caller)
    return Response(status_code=204)


@router.post("/v2/sandboxes/{sandbox_id}/connect")
@router.post("/sandboxes/{sandbox_id}/connect")
@router.post("/sandboxes/{sandbox_id}/resume")
async def connect_sandbox(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Return a sandbox, and resume it if it is paused. Its end is never earlier than before."""
    body = ConnectRequest.model_validate_json(await request.body() or b"{}")
    row = await sandboxes.set_timeout(sandbox_id, caller, body.timeout, may_shorten=False)
    return JSONResponse(new_sandbox(row, sandboxes.ports.domain), 200 if row.paused_at is None else 201)


@router.post("/sandboxes/{sandbox_id}/timeout")
async def set_sandbox_timeout(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Set the seconds until a sandbox ends."""
    body = SandboxTimeout.model_validate_json(await request.body())
    await _require_running(await sandboxes.get(sandbox_id, caller))
    await sandboxes.set_timeout(sandbox_id, caller, body.timeout, may_shorten=True)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/refreshes")
async def refresh_sandbox(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Extend the life of a sandbox, as old clients do."""
    await _require_running(await sandboxes.get(sandbox_id, caller))
    await sandboxes.set_timeout(sandbox_id, caller, 60, may_shorten=False)
    return Response(status_code=204)


@router.put("/sandboxes/{sandbox_id}/network")
async def set_sandbox_network(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Replace the network of a sandbox."""
    body = UpdateNetworkRequest.model_validate_json(await request.body())
    network = network_setting(body, has_internet=body.has_internet, widest=sandboxes.widest_network)
    await sandboxes.set_network(sandbox_id, caller, network)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/pause")
async def pause_sandbox(sandbox_id: str, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Pause a sandbox."""
    if not await sandboxes.pause(sandbox_id, caller):
        raise Conflict(f"sandbox {sandbox_id} is already paused")
    return Response(status_code=204)


@router.get("/sandboxes/{sandbox_id}/metrics")
async def get_sandbox_metrics(sandbox_id: str, caller: Reader, sandboxes: SandboxesDep) -> Response:
    """Return no samples: a sandbox without a running command uses no cores."""
    await sandboxes.get(sandbox_id, caller)
    return JSONResponse([])


@router.api_route("/sandboxes/{sandbox_id}/{feature}", methods=["GET", "POST", "PUT", "DELETE"])
@router.api_route("/v2/sandboxes/{sandbox_id}/{feature}", methods=["GET", "POST", "PUT", "DELETE"])
async def refuse_feature(sandbox_id: str, feature: str, caller: Writer) -> Response:
    """Refuse a feature that this server does not have."""
    raise not_supported(f"{feature[:64]} of sandboxes")


@router.api_route("/templates", methods=["GET", "POST"])
@router.api_route("/v2/templates", methods=["POST"])
@router.api_route("/v3/templates", methods=["POST"])
@router.api_route("/templates/{rest:path}", methods=["GET", "POST", "DELETE"])
async def refuse_templates(caller: Writer, rest: str = "") -> Response:
    """Refuse the management of templates."""
    raise not_supported("templates. Import an image with `tangram templates import` and use its name")


async def _require_running(row: Row) -> None:
    if row.paused_at is not None:
        raise NotFound(f"sandbox {row.id.hex} is paused")


def _parse_metadata(form: str) -> dict[str, str]:
    """Return the wanted metadata. Names and values are percent-encoded inside the form."""
    return {unquote(name): unquote(value) for name, value in parse_qsl(form, keep_blank_values=True)}


def _parse_state(states: str | None) -> bool | None:
    """Return True for only paused sandboxes, False for only running ones, None for both."""
    if not states:
        return None
    wanted = set(states.split(","))
    if not wanted <= STATES.keys():
        raise _wrong_parameter("state", "must have values of `running` and `paused`")
    return STATES[wanted.pop()] if len(wanted) == 1 else None


def _parse_time(value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise _wrong_parameter("startedAfter", "must be a time of RFC 3339") from None
    return found if found.tzinfo is not None else found.astimezone()


def _parse_limit(value: str | None) -> int:
    if value is None:
        return MAX_PAGE
    if not value.isdigit() or not 1 <= int(value) <= MAX_PAGE:
        raise _wrong_parameter("limit", f"must be a number from 1 to {MAX_PAGE}")
    return int(value)


def _token(row: Row) -> str:
    return f"{row.created_at.isoformat()}_{row.id.hex}"


def _parse_token(token: str) -> tuple[datetime, UUID]:
    at, _, id = token.partition("_")
    try:
        return datetime.fromisoformat(at.replace(" ", "+")), UUID(id)
    except ValueError:
        raise _wrong_parameter("nextToken", "is not a token of this list: use X-Next-Token") from None


def _wrong_parameter(name: str, message: str) -> BadRequest:
    text = f"query.{name} {message}"
    return BadRequest(text, errors=[FieldError(field=f"query.{name}", message=message)])
