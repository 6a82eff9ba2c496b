"""The exchange of a join token on the node, and the check of the credentials."""

import asyncio
import ssl
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
from pydantic import ValidationError

from arl_local.join.credentials import JoinedNode
from arl_local.join.join_token import InvalidJoinToken, JoinToken
from arl_store.files import replace_file
from arl_wire.admin.nodes import JoinNodeResponse

__all__ = ["JoinFailed", "check_database", "exchange_token"]

_TIMEOUT_S = 15.0
_CLAIM_FILE = "join-claim"


class JoinFailed(RuntimeError):
    """The node cannot join. The message says why and what to do."""


def exchange_token(url: str, token: JoinToken, directory: Path) -> JoinedNode:
    """Exchange the token at the gateway `url` and store the credentials in the directory.

    A repeated call after a lost response gets the same credentials. Raises `JoinFailed`.
    """
    claim_file = directory / _CLAIM_FILE
    if not claim_file.exists():
        replace_file(claim_file, str(uuid.uuid4()))
    headers = {"authorization": token.authorization, "idempotency-key": claim_file.read_text()}
    try:
        answer = httpx.post(f"{url.rstrip('/')}/v1/nodes/join", headers=headers, timeout=_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise JoinFailed(
            f"the gateway at {url} is not reachable: {error}. Is the address right, and was the system started with"
            " `tangram up --listen`?"
        ) from None
    if not answer.is_success:
        raise JoinFailed(_refusal(url, answer))
    try:
        credentials = JoinNodeResponse.model_validate_json(answer.content).credentials
        joined = JoinedNode.model_validate(token.decrypt(credentials.encode()))
    except (ValidationError, InvalidJoinToken) as error:
        raise JoinFailed(f"the answer of {url} is not that of a gateway: {error}") from None
    joined.store(directory)
    claim_file.unlink()
    return joined


def _refusal(url: str, answer: httpx.Response) -> str:
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"status {answer.status_code}; is this the address of a gateway?"
    return f"{url} refused the join: {detail}"


async def check_database(joined: JoinedNode, directory: Path) -> None:
    """Connect to Postgres as the node. Raises `JoinFailed` with the reason."""
    url = joined.database_url_in(directory)
    place = f"{urlsplit(url).hostname}:{urlsplit(url).port or 5432}"
    try:
        connection = await asyncpg.connect(url, timeout=_TIMEOUT_S)
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        if not isinstance(error, asyncpg.InvalidPasswordError):
            raise JoinFailed(f"Postgres at {place} refuses this machine: {error}") from None
        raise JoinFailed(
            f"Postgres at {place} refuses the credentials of node {joined.name!r} ({error}). If the node was removed,"
            " join again with a new token: tangram nodes join-token create"
        ) from None
    except ssl.SSLError as error:
        raise JoinFailed(f"the certificate of Postgres at {place} is not that of this system: {error}") from None
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncpg.PostgresError) as error:
        raise JoinFailed(
            f"Postgres at {place} is not reachable from this machine ({error or type(error).__name__}). Check the"
            " firewall, and that this machine is in the network of `tangram up --network`"
        ) from None
    await connection.close()
