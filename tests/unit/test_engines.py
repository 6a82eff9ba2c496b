"""What is held for engines when nobody can say what they hold."""

import socket
from dataclasses import asdict, dataclass

import pytest

from arl_core.residency import Busy
from arl_gpu.cpu_device import CpuDevice
from arl_gpu.engine import EngineSpec
from arl_gpu.engines import Engines, key_of
from arl_gpu.residency import NoRoom, Residency


@dataclass
class Bytes:
    content: memoryview


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_one_that_can_not_be_asked_has_its_room_and_whoever_uses_it_and_does_not_leave(nobody: str) -> None:
    residency = Residency(CpuDevice(8))
    spec = asdict(EngineSpec(url=nobody, family="vllm", size=6))
    engines = Engines({"e": spec}, residency, keys={}, held=["e"], on_step=lambda: None)
    assert (engines.states, residency.used, engines.unheard) == ({"e": "resident"}, 6, {"e"})
    with pytest.raises(Busy):
        residency.evict(key_of("e"))
    residency.release(key_of("e"))
    residency.load("a", Bytes(memoryview(b"four")))
    with pytest.raises(NoRoom), residency.using("a"):
        pass
    assert (engines.states, residency.used) == ({"e": "resident"}, 6)


def test_several_that_can_not_be_asked_may_be_more_than_there_is_room_for(nobody: str) -> None:
    residency = Residency(CpuDevice(8))
    spec = asdict(EngineSpec(url=nobody, family="vllm", size=6))
    engines = Engines({"e": spec, "f": spec}, residency, keys={}, on_step=lambda: None)
    assert (engines.states, residency.used) == ({"e": "resident", "f": "resident"}, 12)
