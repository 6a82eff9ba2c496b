"""The exchange of a join token for the credentials of a node."""

from hashlib import sha256

from arl_gateway.audit_log.queries import insert_node_event
from arl_store.join_repository import claim_token, token_by_id
from arl_store.tx import PostgresStore, Row
from arl_wire.admin.nodes import JoinNodeResponse
from arl_wire.errors import Forbidden, Unauthenticated

__all__ = ["NodeJoin"]

_CREATE = "create another: `tangram nodes join-token create`"


class NodeJoin:
    """The exchange. The node proves that it has the secret of its token and does not send the secret."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def exchange(self, authorization: str, *, claim: str, used_from: str) -> JoinNodeResponse:
        """Use a token once. A repeated request with the same `claim` gets the same credentials again.

        Raises `Unauthenticated` for a text that is no token, and `Forbidden` with the reason for other tokens.
        """
        id, proof = _parse(authorization)
        proof_hash, claim_hash = sha256(proof.encode()).digest(), sha256(claim.encode()).digest()
        async with self._store.write() as tx:
            used = await claim_token(tx, id, proof_hash=proof_hash, claim_hash=claim_hash, used_from=used_from)
            if used is not None:
                if used.is_first:
                    await insert_node_event(tx, verb="node.join", name=used.node_name, detail={"from": used_from})
                return JoinNodeResponse(node_name=used.node_name, credentials=bytes(used.credentials).decode())
            known = await token_by_id(tx, id)
        raise Forbidden(_refusal(known, proof_hash))


def _parse(authorization: str) -> tuple[str, str]:
    scheme, _, given = authorization.partition(" ")
    prefix, _, rest = given.strip().partition("_")
    id, _, proof = rest.partition("_")
    if scheme.lower() != "bearer" or prefix != "tj" or not id or not proof or not given.isascii():
        raise Unauthenticated("the request has no join token; `tangram node up --join` sends it")
    return id, proof


def _refusal(known: Row | None, proof_hash: bytes) -> str:
    """Return why a token is refused. Only those who have its secret learn about its use."""
    if known is None or bytes(known.proof_hash) != proof_hash:
        return (
            "this system does not know the join token. It belongs to another system, it is incomplete, or another"
            f" token for the same node has replaced it; {_CREATE}"
        )
    if known.used_at is not None:
        used = f"by {known.used_from} at {known.used_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"the join token of node {known.node_name!r} was already used {used}; {_CREATE}"
    return f"the join token expired at {known.expires_at:%Y-%m-%d %H:%M:%S} UTC; {_CREATE}"
