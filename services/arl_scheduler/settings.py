from pydantic import Field, SecretStr

from arl_core.policies.registry import PolicyName
from arl_kit.settings import ServiceSettings

__all__ = ["SchedulerSettings"]


class SchedulerSettings(ServiceSettings):
    """The settings of a scheduler."""

    node_token_master: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret from which the secrets of joined nodes are derived. Absent: their requests are refused",
    )
    policy: PolicyName = Field(
        default=PolicyName.SPAR_M,
        description="Scheduling policy, which decides when actions start and which resources they occupy",
    )
    step_aware: bool = Field(
        default=True,
        description="True to let the actions of the trajectories that are expected to end a training step last go"
        " first; only for the policies `spar` and `spar_m`",
    )
    pod_cores: float = Field(
        default=1.0,
        ge=0.01,
        le=4096,
        description="Cores of a trajectory's pod; only for the policies `static` and `overcommitted`",
    )
    leader_ttl_s: float = Field(
        default=10.0, gt=0, description="Seconds for which a leader leads without a renewal; then another may lead"
    )
    node_ttl_s: float = Field(
        default=10.0, gt=0, description="Seconds without a heartbeat after which a node loses its grants"
    )
    environment_loss_after_s: float = Field(
        default=300.0, gt=0, description="Seconds without a heartbeat after which a node loses its environments"
    )
    poll_busy_s: float = Field(
        default=1.0, gt=0, le=1.0, description="Seconds between polls while actions are queued or run"
    )
    poll_idle_s: float = Field(default=5.0, gt=0, description="Maximum seconds between polls without actions")
    round_limit: int = Field(
        default=500,
        ge=1,
        description="Maximum number of grants in one round, so that notifications are handled in between",
    )
    recovery_page_size: int = Field(
        default=2000, ge=1, le=100_000, description="Number of queued rows that a new leader reads in one statement"
    )
    trace_slow_s: float = Field(
        default=10.0,
        gt=0,
        description="Action completion time in seconds above which an action is always traced, as are failed actions",
    )
    trace_rounds: bool = Field(
        default=False,
        description="True to export each scheduling round as a trace of its own, linked with the actions it granted",
    )

    @property
    def pod_cpu_milli(self) -> int:
        """Return the milli-cores of a pod."""
        return round(1000 * self.pod_cores)
