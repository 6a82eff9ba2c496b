"""Ports of sandboxes by E2B's host names and headers, and ports of other environments by host name.

As with E2B, everyone who knows the id of a sandbox can use its ports, unless it was created without public traffic or
the operator closed them. Other environments need an API key.
"""

from hmac import compare_digest

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arl_gateway.compat.e2b import sandbox_queries
from arl_gateway.compat.e2b.access import HOST_NAME, PORT_HOSTS_PREFIX, TOKEN_HEADERS
from arl_gateway.compat.e2b.errors import SandboxAbsent
from arl_gateway.compat.e2b.sandboxes import parse_sandbox_id
from arl_gateway.deps import gateway_deps
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import authenticate_request
from arl_gateway.ports.forwarding import PortTarget
from arl_gateway.ports.relayed_headers import PortAddress
from arl_gateway.ports.routes import PortEndpoint, parse_port, target_after
from arl_store.tx import Row
from arl_wire.errors import NotFound, Unauthenticated

__all__ = ["HOST_ROUTES"]

CREDENTIALS = ("authorization", "x-api-key")


async def _forward_by_host(request: Request) -> Response:
    """Forward a request to the port of a sandbox, or of an environment if the request has an API key."""
    port = parse_port(request.path_params["port"])
    try:
        row = await _find_sandbox(request)
        if row is not None:
            caller = Caller(row.key_id, row.project_id, row.project, frozenset({"actions:write"}))
            is_keyed = False
        else:
            caller, is_keyed = await _authenticate(request), True
        id = row.id if row is not None else parse_sandbox_id(request.path_params["sandbox"])
        environment = await gateway_deps(request).environments.require_live(id, caller)
    except SandboxAbsent as absent:
        return absent.response()
    if row is not None:  # `_authenticate` counts the requests with a key
        gateway_deps(request).rate_limiter.acquire(row.key_id)
    address = PortAddress(port=port, prefix=None if _has_own_host(request) else b"", is_keyed=is_keyed)
    _, target = target_after(request.scope, 4)
    return await gateway_deps(request).port_forwarder.forward(
        request, PortTarget(environment=environment, port=port, caller=caller, target=target, address=address)
    )


def _has_own_host(request: Request) -> bool:
    """Return True if the host name is in the domain of ports, so that cookies concern only this port."""
    domain, host = gateway_deps(request).sandboxes.ports.domain, request.headers.get("host", "").partition(":")[0]
    return domain is not None and HOST_NAME.match(host) is not None and host.endswith(f".{domain.partition(':')[0]}")


async def _find_sandbox(request: Request) -> Row | None:
    """Return the sandbox, or None if there is none and the request has an API key.

    Raises SandboxAbsent, or Unauthenticated if the sandbox's ports are not public.
    """
    deps, sandbox_id = gateway_deps(request), request.path_params["sandbox"]
    token = next((request.headers[name] for name in TOKEN_HEADERS if name in request.headers), "")
    async with deps.store.read() as tx:
        if sandbox_id == "-":
            row = await sandbox_queries.sandbox_by_token(tx, token)
        else:
            try:
                row = await sandbox_queries.sandbox_by_id(tx, parse_sandbox_id(sandbox_id))
            except NotFound:
                raise SandboxAbsent(sandbox_id) from None
    if row is None and sandbox_id != "-" and any(name in request.headers for name in CREDENTIALS):
        return None
    if row is None or row.paused_at is not None:
        raise SandboxAbsent(sandbox_id)
    is_public = row.has_public_ports and deps.sandboxes.ports.are_public
    if not is_public and not compare_digest(token.encode(), row.access_token.encode()):
        raise Unauthenticated("the ports of this sandbox need its token in E2B-Traffic-Access-Token")
    return row


async def _authenticate(request: Request) -> Caller:
    caller = await authenticate_request(request, Response())
    caller.require_scope("actions:write")
    return caller


_BY_HOST = PortEndpoint(_forward_by_host)
HOST_ROUTES = [
    Route(PORT_HOSTS_PREFIX + "{port}/{sandbox}", _BY_HOST),
    Route(PORT_HOSTS_PREFIX + "{port}/{sandbox}/{rest:path}", _BY_HOST),
]
