"""The credentials of each service of an installation: its own secret, and the keys of its permitted callers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from arl_kit.service_tokens import joined_service_token, node_audience, pairwise_key
from arl_local.state_dir import StateDir

__all__ = [
    "ALLOWED_CALLERS",
    "NODE_KINDS",
    "NodeIdentity",
    "joined_node_secrets",
    "node_token_master",
    "service_secrets",
]

ALLOWED_CALLERS = {
    "admission": ("gateway",),
    "scheduler": ("gateway", "admission", "cpu", "gpu", "api"),
    "cpu": ("scheduler", "gateway"),
    "gpu": ("scheduler",),
    "api": ("scheduler",),
    "gateway": (),
}
NODE_KINDS = ("cpu", "gpu", "api")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The kind and the name of a node."""

    kind: str
    name: str

    @property
    def file_name(self) -> str:
        """Return a name for the node's files: node names may contain any characters."""
        return f"{self.kind}-{sha256(self.name.encode()).hexdigest()[:16]}"


def service_secrets(
    state: StateDir, service: str, *, node_name: str | None = None, credential_id: str | None = None
) -> dict[str, str]:
    """Return the secret settings of a service by name, without its database URL. A manager needs its node's name."""
    audience = service if node_name is None else node_audience(node_name, credential_id)
    master = {"node_token_master": node_token_master(state)} if service == "scheduler" else {}
    return {
        **master,
        "service_token": state.secret("tokens", service),
        "caller_keys": json.dumps(_caller_keys(state, ALLOWED_CALLERS[service], audience)),
        "metrics_token_hash": sha256(state.metrics_token().encode()).hexdigest(),
    }


def node_token_master(state: StateDir) -> str:
    """Return the secret from which the secrets of joined nodes are derived. The first call creates it."""
    return state.secret("tokens", "nodes")


def joined_node_secrets(state: StateDir, node: NodeIdentity, credential_id: str) -> dict[str, str]:
    """Return the secret settings of a manager that joins. Its own secret is none of another node."""
    return {
        **service_secrets(state, node.kind, node_name=node.name, credential_id=credential_id),
        "service_token": joined_service_token(node_token_master(state), credential_id),
        "credential_id": credential_id,
    }


def _caller_keys(state: StateDir, callers: Iterable[str], audience: str) -> dict[str, str]:
    return {caller: pairwise_key(state.secret("tokens", caller), audience) for caller in callers}
