"""Bodies of E2B's control plane. Unknown fields are ignored, because each version of the clients sends others."""

import json
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from arl_store.tx import Row

__all__ = ["ENVD_VERSION", "ConnectRequest", "CreateSandboxRequest", "SandboxTimeout", "listed_sandbox", "new_sandbox"]

ENVD_VERSION = "0.6.13"
"""Version of envd whose features the clients expect."""
MAX_TIMEOUT_S = 30 * 86400
DEFAULT_TIMEOUT_S = 15


class SandboxTimeout(BaseModel):
    """The seconds until a sandbox ends."""

    timeout: int = Field(default=DEFAULT_TIMEOUT_S, ge=0, le=MAX_TIMEOUT_S)


class ConnectRequest(SandboxTimeout):
    """A request to connect to a sandbox."""


class SandboxNetwork(BaseModel):
    """The network of a sandbox."""

    model_config = ConfigDict(populate_by_name=True)

    has_public_ports: bool = Field(default=True, alias="allowPublicTraffic")


class CreateSandboxRequest(SandboxTimeout):
    """A request to create a sandbox."""

    model_config = ConfigDict(populate_by_name=True)

    template: str = Field(alias="templateID")
    metadata: dict[str, str] = Field(default_factory=dict)
    variables: dict[str, str] = Field(default_factory=dict, alias="envVars")
    mcp: dict[str, Any] | None = None
    network: SandboxNetwork | None = None
    volumes: list[Any] = Field(default_factory=list, alias="volumeMounts")


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
