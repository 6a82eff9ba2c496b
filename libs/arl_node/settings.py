import socket
from typing import Self

from pydantic import Field, model_validator

from arl_kit.settings import ServiceSettings

__all__ = ["ManagerSettings"]

WILDCARD_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104 - no address that anybody could ask


class ManagerSettings(ServiceSettings):
    """What the manager of any node is told."""

    scheduler_url: str = Field(description="Where to hint freed amounts; the scheduler's poll is the truth")
    node_name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    advertise_url: str | None = Field(default=None, description="How the scheduler reaches this manager")
    node_ttl_s: float = Field(default=10.0, gt=0)
    beat_s: float = Field(default=2.0, gt=0)
    poll_busy_s: float = Field(default=1.0, gt=0, le=1.0)
    poll_idle_s: float = Field(default=8.0, gt=0)

    @model_validator(mode="after")
    def _check_advertise_url(self) -> Self:
        if self.host in WILDCARD_ADDRESSES and self.advertise_url is None:
            raise ValueError(f"with TANGRAM_HOST={self.host} set TANGRAM_ADVERTISE_URL to where others reach this node")
        return self

    @property
    def url(self) -> str:
        return self.advertise_url or f"http://{self.host}:{self.port}"
