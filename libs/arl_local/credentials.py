"""The credentials of each service of an installation: its own secret, and the keys of its permitted callers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from arl_kit.service_tokens import node_audience, pairwise_key
from arl_local.state_dir import StateDir

__all__ = ["ALLOWED_CALLERS", "NODE_KINDS", "NodeIdentity", "service_secrets"]

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


def service_secrets(state: StateDir, service: str, *, node_name: str | None = None) -> dict[str, str]:
    """Return the secret settings of a service by name, without its database URL. A manager needs its node's name."""
    audience = service if node_name is None else node_audience(node_name)
    return {
        "service_token": state.secret("tokens", service),
        "caller_keys": json.dumps(_caller_keys(state, ALLOWED_CALLERS[service], audience)),
        "metrics_token_hash": sha256(state.metrics_token().encode()).hexdigest(),
    }


def _caller_keys(state: StateDir, callers: Iterable[str], audience: str) -> dict[str, str]:
    return {caller: pairwise_key(state.secret("tokens", caller), audience) for caller in callers}
