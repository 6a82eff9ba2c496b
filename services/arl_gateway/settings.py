from pathlib import Path
from typing import Literal

from pydantic import Field

from arl_kit.settings import ServiceSettings
from arl_wire.environments.network import NetworkAllowList, PolicyName

__all__ = ["GatewaySettings"]


class GatewaySettings(ServiceSettings):
    """The settings of the gateway."""

    admission_url: str = Field(description="Base URL of admission, which takes new actions")
    scheduler_url: str = Field(
        description="Base URL of the scheduler, which explains why actions wait. Nothing else depends on it"
    )
    key_cache_s: float = Field(
        default=10.0, ge=0, description="Maximum seconds for which a revoked key may still be accepted"
    )
    max_body_mib: int = Field(default=64, ge=1, le=1024, description="Maximum MiB of a request body")
    max_archive_mib: int = Field(
        default=1024,
        ge=1,
        le=1 << 20,
        description="Maximum MiB of an archive of an environment's files, in both directions",
    )
    rate_limit: int = Field(
        default=20_000, ge=1, description="Maximum number of requests of one key in a window; all may arrive at once"
    )
    rate_limit_window_s: int = Field(default=10, ge=1, le=86400, description="Seconds in which a rate limit refills")
    body_timeout_s: float = Field(
        default=30, gt=0, description="Seconds to receive a body, plus one second for each 64 KiB of it"
    )
    ports_domain: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]+)?$",
        description="Domain below which `PORT-ENVIRONMENT.DOMAIN` leads to this gateway, as the clients of E2B name"
        " ports. It must not be the domain of the API, whose cookies would be sent to programs. Absent: clients get no"
        " such names",
    )
    e2b_public_ports: bool = Field(
        default=True,
        description="Whether everyone who knows the id of a sandbox of E2B's protocol may use its ports, as with E2B,"
        " unless it was created with `allowPublicTraffic: false`. False: its token is always needed",
    )
    max_log_streams: int = Field(
        default=256, ge=0, description="Maximum number of output streams; further ones get 503"
    )
    max_log_streams_per_project: int = Field(
        default=128, ge=0, description="Maximum number of output streams of one project; further ones get 503"
    )
    max_inflight_score_batches: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Maximum number of unsettled score actions of one task and service that combine calls",
    )
    max_pending_scores: int = Field(
        default=20_000, ge=1, description="Maximum number of calls that wait for scores; further ones get 503"
    )
    docs_dir: Path | None = Field(
        default=None,
        description="Directory of the built documentation, served at `/docs`. Absent: `site` in the checkout",
    )
    network_max: Literal["none", "allow", "open"] = Field(
        default="allow",
        description="Widest network that clients may give to environments. `allow`: listed hosts. `open`: every public"
        " address",
    )
    network_policies: dict[PolicyName, NetworkAllowList] = Field(
        default_factory=dict,
        description="Allow lists that clients may name, as JSON: name to an object with `allow`. A list named"
        " `package-mirrors` replaces the built-in one",
    )
    wait_poll_s: float = Field(
        default=1.0, gt=0, le=1.0, description="Seconds between polls for awaited actions, if no notification arrives"
    )
