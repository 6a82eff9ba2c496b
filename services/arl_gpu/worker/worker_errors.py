"""Errors of a worker's orders, and their codes in responses."""

from collections.abc import Mapping

from arl_core.residency.occupancy import ServiceBusyError
from arl_gpu.catalog.service_files import IncompleteModel, ModelNotShardable
from arl_gpu.devices.interface import CopyFailed
from arl_gpu.parallel.rendezvous import PeerLost, PeerNotReady
from arl_gpu.worker.engine_controller import EngineError, EngineTooLarge, EngineWakeFailed
from arl_gpu.worker.messages import HOST_FULL
from arl_gpu.worker.residency import InsufficientMemory

__all__ = ["ERROR_CODES", "HostMemoryFull", "error_code"]


class HostMemoryFull(Exception):
    """A lack of reserved host memory. The manager must reserve `size` bytes."""

    def __init__(self, service: str, size: int) -> None:
        super().__init__(f"{service} needs {size} bytes of host memory")
        self.size = size


ERROR_CODES: Mapping[type[Exception], str] = {
    HostMemoryFull: HOST_FULL,
    InsufficientMemory: "no_room",
    CopyFailed: "copy_failed",
    ServiceBusyError: "busy",
    EngineTooLarge: "engine_too_large",
    EngineError: "engine_trouble",
    EngineWakeFailed: "wake_failed",
    ModelNotShardable: "not_split",
    IncompleteModel: "incomplete_model",
    PeerLost: "peer_gone",
    PeerNotReady: "peer_not_ready",
}
"""Error codes of failed orders. The most specific class of an error counts."""


def error_code(error: Exception) -> str:
    """Return the code of an error whose class or base class is in `ERROR_CODES`."""
    return next(ERROR_CODES[each] for each in type(error).__mro__ if each in ERROR_CODES)
