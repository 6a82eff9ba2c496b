"""Memory accounting for engines that do not answer."""

import socket
from dataclasses import asdict, dataclass

import pytest

from arl_core.residency.occupancy import ServiceBusyError
from arl_gpu.devices.cpu_device import CpuDevice
from arl_gpu.worker.engine_controller import EngineSpec
from arl_gpu.worker.engine_set import EngineSet, residency_key
from arl_gpu.worker.residency import DeviceResidency, InsufficientMemory


@dataclass
class Bytes:
    content: memoryview


@pytest.fixture
def nobody() -> str:
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_unreachable_engine_counts_as_resident_and_cannot_be_evicted(nobody: str) -> None:
    residency = DeviceResidency(CpuDevice(8))
    spec = asdict(EngineSpec(url=nobody, family="vllm", size=6))
    engines = EngineSet({"e": spec}, residency, keys={}, in_use=["e"], on_progress=lambda: None)
    assert (engines.states, residency.used, engines.unconfirmed) == ({"e": "resident"}, 6, {"e"})
    with pytest.raises(ServiceBusyError):
        residency.evict(residency_key("e"))
    residency.release_engine(residency_key("e"))
    residency.load("a", Bytes(memoryview(b"four")))
    with pytest.raises(InsufficientMemory), residency.use("a"):
        pass
    assert (engines.states, residency.used) == ({"e": "resident"}, 6)


def test_unreachable_engines_may_exceed_device_memory(nobody: str) -> None:
    residency = DeviceResidency(CpuDevice(8))
    spec = asdict(EngineSpec(url=nobody, family="vllm", size=6))
    engines = EngineSet({"e": spec, "f": spec}, residency, keys={}, on_progress=lambda: None)
    assert (engines.states, residency.used) == ({"e": "resident", "f": "resident"}, 12)
