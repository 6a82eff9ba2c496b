from pydantic import Field

from arl_core.policies.registry import PolicyName
from arl_kit.settings import ServiceSettings

__all__ = ["SchedulerSettings"]


class SchedulerSettings(ServiceSettings):
    cell: str = Field(default="default", description="One leader per cell")
    policy: PolicyName = Field(default=PolicyName.SPAR_M, description="Who starts when, and what it holds")
    pod_cores: float = Field(
        default=1.0,
        ge=0.01,
        le=4096,
        description="Of a trajectory's pod: static, overcommitted",
    )
    leader_ttl_s: float = Field(default=10.0, gt=0)
    node_ttl_s: float = Field(default=10.0, gt=0, description="A node silent for longer loses its grants")
    environment_loss_after_s: float = Field(
        default=300.0, gt=0, description="A node away for longer loses its environments"
    )
    poll_busy_s: float = Field(default=1.0, gt=0, le=1.0)
    poll_idle_s: float = Field(default=5.0, gt=0)
    round_limit: int = Field(
        default=500, ge=1, description="Grants in one round at most, so that wake-ups get their turn"
    )
    recovery_page_size: int = Field(
        default=2000, ge=1, le=100_000, description="Queued rows that a new leader reads in one statement"
    )
    trace_slow_s: float = Field(
        default=10.0,
        gt=0,
        description="An action that took longer is traced whatever the sampler says; so is a failed one",
    )

    @property
    def pod_cpu_milli(self) -> int:
        return round(1000 * self.pod_cores)
