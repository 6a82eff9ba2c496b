"""Why a worker did not carry an order out, as codes of its answers."""

from collections.abc import Mapping

from arl_core.residency import Busy
from arl_gpu.device import CopyFailed
from arl_gpu.engine import EngineTooLarge, EngineTrouble, WakeFailed
from arl_gpu.messages import HOST_FULL
from arl_gpu.residency import NoRoom
from arl_gpu.services import Incomplete, NotSplit
from arl_gpu.together import PeerGone, PeerNotReady

__all__ = ["CODES", "HostFull", "code_of"]


class HostFull(Exception):
    """Other workers have the host's memory, too: the manager has to be asked for so many bytes."""

    def __init__(self, service: str, size: int) -> None:
        super().__init__(f"{service} takes {size} bytes of host memory")
        self.size = size


CODES: Mapping[type[Exception], str] = {
    HostFull: HOST_FULL,
    NoRoom: "no_room",
    CopyFailed: "copy_failed",
    Busy: "busy",
    EngineTooLarge: "engine_too_large",
    EngineTrouble: "engine_trouble",
    WakeFailed: "wake_failed",
    NotSplit: "not_split",
    Incomplete: "incomplete_model",
    PeerGone: "peer_gone",
    PeerNotReady: "peer_not_ready",
}
"""Of an order that was not carried out: the nearest of the error's classes."""


def code_of(error: Exception) -> str:
    return next(CODES[each] for each in type(error).__mro__ if each in CODES)
