"""What is held for engines when nobody can say what they hold."""

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
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_one_that_can_not_be_asked_has_its_room_and_whoever_uses_it_and_does_not_leave(nobody: str) -> None:
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


def test_several_that_can_not_be_asked_may_be_more_than_there_is_room_for(nobody: str) -> None:
    residency = DeviceResidency(CpuDevice(8))
    spec = asdict(EngineSpec(url=nobody, family="vllm", size=6))
    engines = EngineSet({"e": spec, "f": spec}, residency, keys={}, on_progress=lambda: None)
    assert (engines.states, residency.used) == ({"e": "resident", "f": "resident"}, 12)
