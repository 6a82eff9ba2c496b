import socket

from pydantic import Field

from arl_kit.settings import ServiceSettings

__all__ = ["ManagerSettings"]


class ManagerSettings(ServiceSettings):
    """What the manager of any node is told."""

    scheduler_url: str = Field(description="Where to hint freed amounts; the scheduler's poll is the truth")
    node_name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    advertise_url: str | None = Field(default=None, description="How the scheduler reaches this manager")
    node_ttl_s: float = Field(default=10.0, gt=0)
    beat_s: float = Field(default=2.0, gt=0)
    poll_busy_s: float = Field(default=1.0, gt=0, le=1.0)
    poll_idle_s: float = Field(default=8.0, gt=0)

    @property
    def url(self) -> str:
        return self.advertise_url or f"http://{self.host}:{self.port}"
