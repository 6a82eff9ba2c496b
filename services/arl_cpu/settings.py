from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from arl_core.policies.registry import PolicyName
from arl_node.settings import ManagerSettings
from arl_wire.validation import CustomResources

__all__ = ["CpuSettings"]


class CpuSettings(ManagerSettings):
    driver: Literal["auto", "namespaces", "landlock", "unsafe-local", "simulated"] = "auto"
    launcher_socket: Path | None = Field(default=None, description="Where the launcher listens; not for `simulated`")
    templates_dir: Path | None = Field(default=None, description="This node's templates; without it there is `host`")
    snapshots_dir: Path | None = Field(default=None, description="Where snapshots lie; without it none are taken")
    snapshots_mib: int = Field(default=10_240, ge=0, description="How much they may be, all of them")
    cpu_cores: int | None = Field(default=None, ge=1, le=4096, description="Offer this many cores instead of all")
    policy: PolicyName = Field(
        default=PolicyName.SPAR_M, description="Under `overcommitted` all actions share all cores"
    )
    cpu_reserve: int | None = Field(default=None, ge=0, description="Cores kept for the services")
    memory_mib: int | None = Field(default=None, ge=64, description="Offer this much memory instead of nine tenths")
    resources: CustomResources = Field(
        default_factory=dict, description='What else the node has, as JSON: {"npu": 4}. Counted, and not confined'
    )

    @model_validator(mode="after")
    def _check_launcher_socket(self) -> "CpuSettings":
        if self.driver != "simulated" and self.launcher_socket is None:
            raise ValueError("TANGRAM_LAUNCHER_SOCKET is needed unless TANGRAM_DRIVER is `simulated`")
        return self

    @property
    def shares_cores(self) -> bool:
        """True if cores are not counted: every action is admitted and the kernel divides the cores."""
        return self.policy is PolicyName.OVERCOMMITTED
