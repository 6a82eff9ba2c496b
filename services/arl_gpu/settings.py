import os
import re
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from arl_core.residency.eviction import EvictionPolicy
from arl_gpu.catalog.service_files import BUILT_IN_SERVICES
from arl_gpu.worker.engine_controller import CONTROL_TIMEOUT_S
from arl_gpu.worker.host_memory import memory_limit_bytes
from arl_node.settings import ManagerSettings, UpstreamKey, UpstreamUrl
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.scores import ServiceName

__all__ = ["EngineSettings", "GpuSettings"]


class EngineSettings(BaseModel):
    """An inference engine on this node. Clients reach it only through the node's manager."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: UpstreamUrl = Field(description="What comes before `/v1/chat/completions`")
    family: Literal["vllm", "sglang"]
    device_memory_mib: int = Field(ge=1, description="What it takes of its device while it is awake, all of it")
    device: int = Field(default=0, ge=0, description="Which of `devices` it is on")
    api_key: UpstreamKey | None = None
    admin_key: UpstreamKey | None = Field(
        default=None, description="For sleeping and waking, where that takes another one, as SGLang's --admin-api-key"
    )
    model: str | None = Field(default=None, description="As it calls it; left out, the first that it lists")
    max_concurrent_requests: int = Field(
        default=64, ge=1, le=4096, description="In flight at once; it makes its own batches"
    )
    request_timeout_s: float = Field(default=600.0, gt=0, description="The longest that it may take for an answer")
    wake_timeout_s: float = Field(default=120.0, gt=0)
    sleep_timeout_s: float = Field(default=45.0, gt=0, le=50, description="Meanwhile the device does nothing else")
    engine_down_timeout_s: float = Field(
        default=300.0, gt=0, description="How long actions wait for one that is in trouble, before they settle so"
    )

    @property
    def key(self) -> str | None:
        return self.api_key.get_secret_value() if self.api_key is not None else None

    @property
    def control_key(self) -> str | None:
        return self.admin_key.get_secret_value() if self.admin_key is not None else self.key


class GpuSettings(ManagerSettings):
    node_name: str = Field(default_factory=lambda: f"{socket.gethostname()}-gpu", min_length=1, max_length=128)
    services: Annotated[tuple[str, ...], NoDecode] = Field(
        default=tuple(BUILT_IN_SERVICES),
        description="Offered where their package is installed; names with commas between them",
    )
    reward_functions: dict[ServiceName, str] = Field(
        default_factory=dict, description="Functions that score, `module:callable` by name, as a JSON object"
    )
    models: Path | None = Field(
        default=None, description="Directory below which the sources of registered services lie; without it none is"
    )
    engines: dict[ServiceName, EngineSettings] = Field(
        default_factory=dict, description="What judges are served by, as a JSON object by the names they know them by"
    )
    engines_dir: Path | None = Field(
        default=None, description="Keeps what engines were told that can't be asked, as SGLang, for a later start"
    )
    slots: int = Field(default=64, ge=1, le=4096, description="Actions in flight, of each service")
    device_mib: int = Field(default=512, ge=1, description="Room for weights on the CPU device")
    copy_mib_per_s: float | None = Field(default=None, gt=0, description="Makes the CPU device's copies this slow")
    devices: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("cpu",), min_length=1, max_length=16, description="`cpu` and `cuda:N`, each with a worker; or how many"
    )
    eviction: EvictionPolicy = Field(
        default=EvictionPolicy.COST,
        description="Who leaves a device first; all but `cost` are there to be compared with",
    )
    host_mib: int | None = Field(
        default=None,
        ge=1,
        description="The most that weights take of host memory; without it half of what there is",
    )
    model_swap_delay_s: float = Field(
        default=1.5, ge=0, description="How long services that are on a device go before one that is not"
    )
    batch_tokens: int = Field(default=2048, ge=16, description="What goes to the device at once, if so much waits")
    batch_s: float = Field(
        default=0.05, ge=0, description="More goes there at once where a device computes it within this time"
    )
    max_inflight_tokens: int = Field(
        default=131_072, ge=16, description="Left of actions that began; the time of a larger one that waits stands"
    )
    batch_limit_s: float = Field(
        default=120.0, gt=0, description="A worker that takes longer is started anew; what an engine takes counts apart"
    )
    counter_flush_s: float = Field(
        default=5.0, ge=0, description="How much was scored is written so often at most, unless something else changes"
    )
    device_threads: int | None = Field(default=None, ge=1, description="Of a forward on the CPU device")

    @field_validator("services", mode="before")
    @classmethod
    def _split_names(cls, services: object) -> object:
        if isinstance(services, str):
            return tuple(dict.fromkeys(name for part in services.split(",") if (name := part.strip())))
        return services

    @field_validator("reward_functions")
    @classmethod
    def _check_functions(cls, reward_functions: dict[str, str]) -> dict[str, str]:
        if taken := reward_functions.keys() & (BUILT_IN_SERVICES.keys() | VERIFIERS.keys()):
            raise ValueError(f"{', '.join(sorted(taken))}: these names are taken by services that come along")
        if wrong := [path for path in reward_functions.values() if path.count(":") != 1 or "" in path.split(":")]:
            raise ValueError(f"{', '.join(sorted(wrong))}: write module:callable")
        return reward_functions

    @field_validator("services")
    @classmethod
    def _check_known(cls, services: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(services) - BUILT_IN_SERVICES.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: there is {', '.join(sorted(BUILT_IN_SERVICES))}")
        return services

    @field_validator("devices", mode="before")
    @classmethod
    def _parse_devices(cls, devices: object) -> object:
        """Parse `devices`; a number is a count of CPU devices."""
        if isinstance(devices, int) or (isinstance(devices, str) and devices.strip().isdigit()):
            return ("cpu",) * int(devices)
        return tuple(map(str.strip, devices.split(","))) if isinstance(devices, str) else devices

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [each for each in devices if re.fullmatch(r"cpu|cuda:\d+", each) is None]:
            raise ValueError(f"{', '.join(wrong)}: a device is cpu or cuda:N")
        gpus = [each for each in devices if each != "cpu"]
        if len(gpus) != len(set(gpus)):
            raise ValueError("one process owns a GPU")
        if gpus and find_spec("torch") is None:
            raise ValueError(
                f"{', '.join(gpus)}: needs torch, which is not installed: pip install 'arl-tangram-server[torch]'"
            )
        return devices

    @model_validator(mode="after")
    def _check_engines(self) -> "GpuSettings":
        for name, engine in self.engines.items():
            if engine.device >= len(self.devices):
                raise ValueError(f"engines: {name} is on device {engine.device}, and there is {len(self.devices)}")
            if self.devices[engine.device] == "cpu" and engine.device_memory_mib > self.device_mib:
                raise ValueError(
                    f"engines: {name} takes {engine.device_memory_mib} MiB, and TANGRAM_DEVICE_MIB is {self.device_mib}"
                )
            if engine.sleep_timeout_s + CONTROL_TIMEOUT_S >= self.batch_limit_s:
                raise ValueError(f"engines: {name} may take longer to sleep than batch_limit_s gives a worker")
        return self

    @property
    def host_budget_mib(self) -> int:
        """MiB of host memory for weights; by default half of the control group's limit or of the machine's memory."""
        return self.host_mib or max(1, memory_limit_bytes() >> 21)

    @property
    def same_class_devices(self) -> int:
        """Maximum number of devices that can compute a service together; 1 if CPUs and GPUs are mixed."""
        return len(self.devices) if len({each.partition(":")[0] for each in self.devices}) == 1 else 1

    @property
    def threads_per_device(self) -> int:
        """Threads of one device's worker; by default half of the cores in total.

        Actions need cores too, and threads that wait for each other spin.
        """
        return self.device_threads or max(1, len(os.sched_getaffinity(0)) // (2 * len(self.devices)))
