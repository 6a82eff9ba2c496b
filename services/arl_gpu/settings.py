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

    url: UpstreamUrl = Field(description="Base URL of the engine, before `/v1/chat/completions`")
    family: Literal["vllm", "sglang"] = Field(description="Engine that runs at this URL")
    device_memory_mib: int = Field(
        ge=1, description="Device memory in MiB that the engine uses while it is awake, in total"
    )
    device: int = Field(default=0, ge=0, description="Index in `devices` of the engine's device")
    api_key: UpstreamKey | None = Field(default=None, description="API key of the engine")
    admin_key: UpstreamKey | None = Field(
        default=None,
        description="Key for putting the engine to sleep and waking it, if it differs, as with SGLang's"
        " --admin-api-key",
    )
    model: str | None = Field(
        default=None, description="Name of the model at the engine. Absent: the first model that the engine lists"
    )
    max_concurrent_requests: int = Field(
        default=64, ge=1, le=4096, description="Maximum number of concurrent requests; the engine forms its own batches"
    )
    request_timeout_s: float = Field(default=600.0, gt=0, description="Maximum seconds of one request")
    wake_timeout_s: float = Field(default=120.0, gt=0, description="Maximum seconds for a wake-up")
    sleep_timeout_s: float = Field(
        default=45.0,
        gt=0,
        le=50,
        description="Maximum seconds until the engine sleeps; the device executes nothing else in the meantime",
    )
    engine_down_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Seconds that actions wait for an engine that is down, before they settle as `infra_error`",
    )

    @property
    def key(self) -> str | None:
        """Return the key of requests to the engine, or None."""
        return self.api_key.get_secret_value() if self.api_key is not None else None

    @property
    def control_key(self) -> str | None:
        """Return the key for sleep and wake-up, or None."""
        return self.admin_key.get_secret_value() if self.admin_key is not None else self.key


class GpuSettings(ManagerSettings):
    """The settings of a GPU node."""

    node_name: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-gpu",
        min_length=1,
        max_length=128,
        description="Name of the node; it is unique",
    )
    services: Annotated[tuple[str, ...], NoDecode] = Field(
        default=tuple(BUILT_IN_SERVICES),
        description="Built-in services to offer if their packages are installed, separated by commas",
    )
    reward_functions: dict[ServiceName, str] = Field(
        default_factory=dict,
        description="Functions that score items, as a JSON object: service name to `module:callable`",
    )
    models: Path | None = Field(
        default=None,
        description="Directory of the models of registered services. Absent: no registered model can be offered",
    )
    engines: dict[ServiceName, EngineSettings] = Field(
        default_factory=dict, description="Engines of judges, as a JSON object: name to settings"
    )
    engines_dir: Path | None = Field(
        default=None,
        description="Directory for the sleep state of engines that cannot report it, such as SGLang, across restarts",
    )
    slots: int = Field(default=64, ge=1, le=4096, description="Maximum number of actions in flight per service")
    device_mib: int = Field(default=512, ge=1, description="Size of the CPU device in MiB, for weights")
    copy_mib_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Bandwidth limit of copies to the CPU device in MiB per second, for tests and benchmarks",
    )
    devices: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("cpu",),
        min_length=1,
        max_length=16,
        description="Devices, each with its own worker: `cpu` and `cuda:N`, separated by commas, or a number of"
        " CPU devices",
    )
    eviction: EvictionPolicy = Field(
        default=EvictionPolicy.COST,
        description="Order in which services are evicted from a device; all values but `cost` exist for comparison",
    )
    host_mib: int | None = Field(
        default=None,
        ge=1,
        description="Maximum MiB of weights in host memory. Absent: half of the available memory",
    )
    model_swap_delay_s: float = Field(
        default=1.5,
        ge=0,
        description="Maximum seconds that services on a device go before a service that must be loaded first",
    )
    batch_tokens: int = Field(
        default=2048, ge=16, description="Maximum tokens of a batch, unless `batch_s` allows more"
    )
    batch_s: float = Field(
        default=0.05,
        ge=0,
        description="Target seconds of a batch: a batch may have more than `batch_tokens` if the device computes"
        " it within this time",
    )
    max_inflight_tokens: int = Field(
        default=131_072,
        ge=16,
        description="Maximum tokens of the remaining items of started actions. The timeout of a larger action that"
        " waits does not run",
    )
    batch_limit_s: float = Field(
        default=120.0,
        gt=0,
        description="Seconds of an order after which a worker is restarted; the time of engines does not count",
    )
    counter_flush_s: float = Field(
        default=5.0,
        ge=0,
        description="Minimum seconds between writes of changed counters, unless another value changes",
    )
    device_threads: int | None = Field(default=None, ge=1, description="Threads of a forward on the CPU device")

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
            raise ValueError(f"{', '.join(sorted(taken))}: these names belong to built-in services; choose other names")
        if wrong := [path for path in reward_functions.values() if path.count(":") != 1 or "" in path.split(":")]:
            raise ValueError(f"{', '.join(sorted(wrong))}: must have the form module:callable")
        return reward_functions

    @field_validator("services")
    @classmethod
    def _check_known(cls, services: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(services) - BUILT_IN_SERVICES.keys():
            raise ValueError(
                f"unknown: {', '.join(sorted(unknown))}. Available: {', '.join(sorted(BUILT_IN_SERVICES))}"
            )
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
            raise ValueError(f"{', '.join(wrong)}: a device must be cpu or cuda:N")
        gpus = [each for each in devices if each != "cpu"]
        if len(gpus) != len(set(gpus)):
            raise ValueError("a GPU is listed twice; each GPU can have only one worker")
        if gpus and find_spec("torch") is None:
            raise ValueError(
                f"{', '.join(gpus)}: needs torch, which is not installed: pip install 'arl-tangram-server[torch]'"
            )
        return devices

    @model_validator(mode="after")
    def _check_engines(self) -> "GpuSettings":
        for name, engine in self.engines.items():
            if engine.device >= len(self.devices):
                raise ValueError(
                    f"engines: {name} is on device {engine.device}, but only {len(self.devices)} devices exist"
                )
            if self.devices[engine.device] == "cpu" and engine.device_memory_mib > self.device_mib:
                raise ValueError(
                    f"engines: {name} needs {engine.device_memory_mib} MiB, but TANGRAM_DEVICE_MIB is {self.device_mib}"
                )
            if engine.sleep_timeout_s + CONTROL_TIMEOUT_S >= self.batch_limit_s:
                raise ValueError(f"engines: the sleep timeout of {name} is longer than batch_limit_s allows a worker")
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
