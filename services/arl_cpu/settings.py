from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from arl_core.policies.registry import CORE_SHARING_POLICIES, POD_POLICIES, PolicyName
from arl_node.settings import ManagerSettings
from arl_wire.validation import CustomResources

__all__ = ["CpuSettings"]


class CpuSettings(ManagerSettings):
    """The settings of a CPU node."""

    driver: Literal["auto", "namespaces", "landlock", "unsafe-local", "simulated"] = Field(
        default="auto", description="Driver that confines actions; `simulated` runs no programs"
    )
    launcher_socket: Path | None = Field(
        default=None, description="Path of the launcher's socket; required unless the driver is `simulated`"
    )
    templates_dir: Path | None = Field(
        default=None, description="Directory of this node's templates. Absent: only `host` is available"
    )
    images_mib: int = Field(
        default=20_480,
        ge=0,
        description="Disk budget of pulled images in MiB, unpacked. The longest unused are removed. 0: no image is"
        " pulled",
    )
    image_max_mib: int = Field(default=32_768, ge=1, description="Maximum size of one image in MiB, unpacked")
    image_max_files: int = Field(default=2_000_000, ge=1, description="Maximum number of files of one image")
    image_pulls: int = Field(default=2, ge=1, le=64, description="Number of images that the node pulls at once")
    image_layer_pulls: int = Field(default=4, ge=1, le=64, description="Number of layers of one image pulled at once")
    image_give_up_s: float = Field(
        default=300.0, gt=0, description="Seconds after which a registry that sends nothing counts as unavailable"
    )
    registries_file: Path | None = Field(
        default=None,
        description="TOML file with credentials, mirrors, proxies and plain HTTP of registries. It is read at each"
        " pull. Absent: every registry, over TLS and without credentials",
    )
    snapshots_dir: Path | None = Field(
        default=None, description="Directory of snapshots. Absent: no snapshots can be taken"
    )
    snapshots_mib: int = Field(default=10_240, ge=0, description="Maximum size of all snapshots in MiB")
    cpu_cores: int | None = Field(
        default=None, ge=1, le=4096, description="Number of cores to offer. Absent: all cores except the reserve"
    )
    policy: PolicyName = Field(
        default=PolicyName.SPAR_M,
        description="Scheduling policy; under `overcommitted` and `unlimited`, all actions share all cores",
    )
    cpu_reserve: int | None = Field(
        default=None,
        ge=0,
        description="Cores reserved for the services. Absent: one core if the node has at least 8, else none",
    )
    memory_mib: int | None = Field(
        default=None, ge=64, description="Memory to offer in MiB. Absent: nine tenths of the memory"
    )
    resources: CustomResources = Field(
        default_factory=dict,
        description='Further resources of the node as JSON, such as {"npu": 4}. They are counted; nothing limits'
        " their actual use",
    )

    @model_validator(mode="after")
    def _check_launcher_socket(self) -> "CpuSettings":
        if self.driver != "simulated" and self.launcher_socket is None:
            raise ValueError("TANGRAM_LAUNCHER_SOCKET must be set unless TANGRAM_DRIVER is `simulated`")
        return self

    @property
    def shares_cores(self) -> bool:
        """True if cores are not counted: every action is admitted and the kernel divides the cores."""
        return self.policy in CORE_SHARING_POLICIES

    @property
    def has_pods(self) -> bool:
        """True if actions run in the pods of their trajectories, whose cores do not depend on the action."""
        return self.policy in POD_POLICIES
