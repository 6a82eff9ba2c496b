from typing import Literal

from pydantic import Field

from arl_kit.settings import ServiceSettings

__all__ = ["AdmissionSettings"]


class AdmissionSettings(ServiceSettings):
    """The settings of admission."""

    scheduler_url: str = Field(description="Base URL of the scheduler, which is notified of new actions")
    default_max_queued: int = Field(
        default=100_000,
        ge=1,
        description="Maximum number of queued actions of a task whose queue has no limit of its own",
    )
    action_retention_s: float = Field(
        default=7 * 86400, ge=1, le=3650 * 86400, description="Seconds for which a settled action can be read"
    )
    cpu_form: Literal["exclusive", "shared"] = Field(
        default="shared", description="Form of the CPU demand of actions that do not choose one"
    )
    forget_node_after_s: float = Field(
        default=86400,
        ge=10,
        description="Seconds without a heartbeat after which a node no longer counts for whether an action can ever"
        " run",
    )
    idempotency_key_retention_s: int = Field(
        default=24 * 3600, ge=60, description="Seconds for which an Idempotency-Key is remembered"
    )
