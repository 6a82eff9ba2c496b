"""Bodies of E2B's control plane. Unknown fields are ignored, because each version of the clients sends others."""

import json
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from arl_gateway.compat.e2b.errors import not_supported
from arl_store.tx import Row
from arl_wire.environments.network import NetworkAllowList, NetworkSetting
from arl_wire.errors import FieldError, ValidationFailed

__all__ = [
    "ENVD_VERSION",
    "ConnectRequest",
    "CreateSandboxRequest",
    "SandboxNetwork",
    "SandboxTimeout",
    "UpdateNetworkRequest",
    "listed_sandbox",
    "network_setting",
    "new_sandbox",
]

ENVD_VERSION = "0.6.13"
"""Version of envd whose features the clients expect."""
MAX_TIMEOUT_S = 30 * 86400
DEFAULT_TIMEOUT_S = 15
ALL_TRAFFIC = frozenset({"0.0.0.0/0", "::/0"})


class SandboxTimeout(BaseModel):
    """The seconds until a sandbox ends."""

    timeout: int = Field(default=DEFAULT_TIMEOUT_S, ge=0, le=MAX_TIMEOUT_S)


class ConnectRequest(SandboxTimeout):
    """A request to connect to a sandbox."""


class SandboxNetwork(BaseModel):
    """The rules for connections of a sandbox to other hosts, and to its own ports."""

    model_config = ConfigDict(populate_by_name=True)

    allowed: list[str] = Field(default_factory=list, alias="allowOut")
    denied: list[str] = Field(default_factory=list, alias="denyOut")
    rules: dict[str, Any] | None = None
    proxy: dict[str, Any] | None = Field(default=None, alias="egressProxy")
    has_public_ports: bool = Field(default=True, alias="allowPublicTraffic")

    @property
    def has_rules(self) -> bool:
        """True if it says something about connections to other hosts."""
        return bool(self.allowed or self.denied or self.rules or self.proxy)


class CreateSandboxRequest(SandboxTimeout):
    """A request to create a sandbox."""

    model_config = ConfigDict(populate_by_name=True)

    template: str = Field(alias="templateID")
    metadata: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, str] = Field(default_factory=dict, alias="envVars")
    mcp: dict[str, Any] | None = None
    network: SandboxNetwork | None = None
    has_internet: bool | None = Field(default=None, alias="allow_internet_access")
    volumes: list[Any] = Field(default_factory=list, alias="volumeMounts")


class UpdateNetworkRequest(SandboxNetwork):
    """A request that replaces all rules of a sandbox."""

    has_internet: bool | None = Field(default=None, alias="allow_internet_access")


def network_setting(
    network: SandboxNetwork | None, *, has_internet: bool | None, widest: NetworkSetting
) -> NetworkSetting:
    """Return the network that E2B's rules mean. Raises GuestCallError for rules that this server cannot apply.

    `widest` is the network of sandboxes without rules. Only hosts of `allowOut` are allowed if there are any.
    """
    network = network or SandboxNetwork()
    if network.rules or network.proxy:
        raise not_supported("`rules` and `egressProxy` of a sandbox's network")
    if set(network.denied) - ALL_TRAFFIC:
        raise not_supported("`denyOut` with a part of the addresses. Deny all of them and list hosts in `allowOut`")
    if set(network.allowed) & ALL_TRAFFIC:
        return widest
    if network.allowed:
        return to_allow_list(network.allowed)
    return "none" if network.denied or has_internet is False else widest


def to_allow_list(hosts: list[str]) -> NetworkAllowList:
    """Return the list. Raises ValidationFailed for an invalid host."""
    try:
        return NetworkAllowList(allow=hosts)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        field = FieldError(field="network.allowOut", message=message)
        raise ValidationFailed(f"network.allowOut: {message}", errors=[field]) from None


def new_sandbox(row: Row, domain: str | None) -> dict[str, Any]:
    """Return a sandbox with its token, as `create` and `connect` answer. `domain` is that of the names of ports."""
    return {
        **({"domain": domain} if domain is not None else {}),
        "templateID": row.template,
        "sandboxID": row.id.hex,
        "clientID": "tangram",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": row.access_token,
        "trafficAccessToken": row.access_token,
    }


def listed_sandbox(row: Row) -> dict[str, Any]:
    """Return a sandbox as lists and `get_info` show it."""
    ends_at = row.ends_at if row.paused_at is None else max(row.ends_at, row.paused_at + timedelta(days=30))
    return {
        "templateID": row.template,
        "sandboxID": row.id.hex,
        "clientID": "tangram",
        "startedAt": row.created_at.isoformat(),
        "endAt": ends_at.isoformat(),
        "cpuCount": 1,
        "memoryMB": row.memory_mib,
        "diskSizeMB": row.disk_mib,
        "state": "running" if row.paused_at is None else "paused",
        "envdVersion": ENVD_VERSION,
        "metadata": json.loads(row.metadata),
    }
