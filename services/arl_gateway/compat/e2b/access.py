"""Requests for the inside of a sandbox: their recognition, and their authentication by token or signature.

They arrive at the same address as the API. A middleware gives them a path of their own, so that E2B's paths `/files`
and `/health` do not collide with others.
"""

import re
import time
from hmac import compare_digest
from urllib.parse import quote
from uuid import UUID

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from arl_gateway.compat.e2b import sandbox_queries
from arl_gateway.compat.e2b.errors import GuestCallError, SandboxAbsent
from arl_gateway.compat.e2b.sandboxes import parse_sandbox_id
from arl_gateway.deps import gateway_deps
from arl_store.tx import Row
from arl_wire.errors import NotFound

__all__ = [
    "ENVD_PREFIX",
    "HOST_NAME",
    "INTERPRETER_PREFIX",
    "PORTS_PREFIX",
    "PORT_HOSTS_PREFIX",
    "TOKEN_HEADERS",
    "SandboxPaths",
    "authenticate_sandbox",
]

ENVD_PREFIX = "/e2b/envd"
PORTS_PREFIX = "/e2b/ports"
INTERPRETER_PORT = "49999"
INTERPRETER_PREFIX = f"{PORTS_PREFIX}/{INTERPRETER_PORT}"
PORT_HOSTS_PREFIX = "/e2b/port-hosts/"
"""Path of requests to other ports. The port and the id of the sandbox follow, or `-` for a sandbox named by token."""
OPEN_PATHS = frozenset({f"{ENVD_PREFIX}/health", f"{INTERPRETER_PREFIX}/health"})
"""Paths that E2B's clients request without a token. They say only whether the sandbox runs."""
FILES_PATH = f"{ENVD_PREFIX}/files"
TOKEN_HEADERS = ("x-access-token", "e2b-traffic-access-token")
"""Headers with the token of a sandbox. Requests about contexts have only the second one."""
ENVD_PORT = "49983"
HOST_NAME = re.compile(r"(\d+)-([a-z0-9]+)\.")
API_PORT_PATHS = ("/v1/environments/", "/v1/ports/")
"""Beginnings of paths that name a port themselves."""
RPC_PREFIXES = ("/process.Process/", "/filesystem.Filesystem/")
_RESULT = "tangram.e2b_sandbox"


class SandboxPaths:
    """A middleware that adds a prefix to the paths of requests for the inside of a sandbox."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (prefix := _prefix(scope)) is not None:
            path = prefix + scope["path"]
            scope = {**scope, "path": path, "raw_path": prefix.encode() + scope.get("raw_path", scope["path"].encode())}
        await self._app(scope, receive, send)


def _prefix(scope: Scope) -> str | None:
    headers, path = Headers(scope=scope), scope["path"]
    if path.startswith(API_PORT_PATHS):
        return None  # its headers are for the server inside
    host = HOST_NAME.match(headers.get("host", ""))
    is_rpc = path.startswith(RPC_PREFIXES)
    is_signed = path == "/files" and b"signature=" in scope["query_string"]
    if not (host or is_rpc or is_signed or "e2b-sandbox-id" in headers or "x-access-token" in headers):
        return None
    port = headers.get("e2b-sandbox-port") or (host[1] if host else ENVD_PORT)
    if port == ENVD_PORT:
        return ENVD_PREFIX
    if port == INTERPRETER_PORT:
        return INTERPRETER_PREFIX
    sandbox_id = headers.get("e2b-sandbox-id") or (host[2] if host else "-")
    return PORT_HOSTS_PREFIX + "/".join(quote(each, safe="") or "-" for each in (port, sandbox_id))


async def authenticate_sandbox(request: Request) -> Row:
    """Return the sandbox of a request, authenticated once. Raises SandboxAbsent, GuestCallError."""
    known: Row | Exception | None = request.scope.get(_RESULT)
    if isinstance(known, Exception):
        raise known
    if known is not None:
        return known
    try:
        found = await _find_sandbox(request)
    except Exception as error:
        request.scope[_RESULT] = error
        raise
    request.scope[_RESULT] = found
    return found


async def _find_sandbox(request: Request) -> Row:
    headers = request.headers
    host = HOST_NAME.match(headers.get("host", ""))
    sandbox_id = headers.get("e2b-sandbox-id") or (host[2] if host else None)
    token = next((headers[name] for name in TOKEN_HEADERS if name in headers), None)
    is_signed = request.url.path == FILES_PATH and "signature" in request.query_params and token is None
    async with gateway_deps(request).store.read() as tx:
        if is_signed:
            _check_expiry(request)
            row = await sandbox_queries.sandbox_by_signature(tx, **_signed_text(request))
            if row is None or (sandbox_id is not None and row.id.hex != sandbox_id):
                raise GuestCallError("unauthenticated", "the signature is wrong, or its sandbox has ended")
        elif sandbox_id is not None:
            row = await sandbox_queries.sandbox_by_id(tx, _environment_id(sandbox_id))
        else:
            row = await sandbox_queries.sandbox_by_token(tx, token or "")
    if row is None or row.paused_at is not None:
        raise SandboxAbsent(sandbox_id or "")
    is_open = is_signed or request.url.path in OPEN_PATHS
    if not is_open and not compare_digest((token or "").encode(), row.access_token.encode()):
        raise GuestCallError("unauthenticated", "the request needs the sandbox's token in X-Access-Token")
    return row


def _environment_id(sandbox_id: str) -> UUID:
    try:
        return parse_sandbox_id(sandbox_id)
    except NotFound:
        raise SandboxAbsent(sandbox_id) from None


def _signed_text(request: Request) -> dict[str, str]:
    """Return the signature, and the signed text before and after the token."""
    query = request.query_params
    operation = "read" if request.method == "GET" else "write"
    expiry = query.get("signature_expiration")
    return {
        "before": f"{query.get('path', '')}:{operation}:{query.get('username', '')}:",
        "after": f":{expiry}" if expiry is not None else "",
        "signature": query["signature"].removeprefix("v1_"),
    }


def _check_expiry(request: Request) -> None:
    expiry = request.query_params.get("signature_expiration")
    if expiry is not None and (not expiry.isdigit() or int(expiry) < time.time()):
        raise GuestCallError("unauthenticated", "the signature has expired")
