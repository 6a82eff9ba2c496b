"""The process that owns a device: it loads services, keeps them resident while there is room, and runs forwards.

`python -m arl_gpu.worker FD CONFIG`; a child of its manager, which it does not outlive. One order at a time. Numerical
libraries are imported with the first order, so that a node that scores nothing does not pay for them.
"""

import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_gpu.cpu_device import CpuDevice
from arl_gpu.device import CopyFailed
from arl_gpu.messages import read_blocking, write_blocking
from arl_gpu.residency import NoRoom, NotFreed, Residency

__all__ = ["Config", "serve"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`directories`: of each service, by name."""

    directories: dict[str, str]
    device_mib: int
    copy_mib_per_s: float | None

    def device(self) -> CpuDevice:
        rate = self.copy_mib_per_s
        return CpuDevice(self.device_mib * MIB, bytes_per_s=rate * MIB if rate is not None else None)


class _Worker:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._residency = Residency(config.device())
        self._models: dict[str, Any] = {}

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Entries and figures of one batch, or why there are none. `NotFreed` ends this process."""
        try:
            answer = self._score(order["service"], [(text, reference) for text, reference in order["pairs"]])
        except NoRoom as error:
            answer = {"error": "no_room", "message": str(error)}
        except CopyFailed as error:
            answer = {"error": "copy_failed", "message": str(error)}
        except NotFreed:
            raise
        except Exception as error:  # noqa: BLE001 - the batch hears of it, and the next one may be another's
            answer = {"error": "forward_failed", "message": f"{type(error).__name__}: {error}"}
        states = {name: state.value for name, state in self._residency.states.items()}
        return answer | {"states": states, "used_bytes": self._residency.used}

    def _score(self, service: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        model = self._model(service)
        before = self._residency.restores
        with self._residency.using(service) as content:
            scored = model.score(pairs, content)
        restored = self._residency.restores > before
        return {
            "entries": scored.entries,
            "texts": scored.texts,
            "tokens": scored.tokens,
            "padding": scored.padding,
            "forward_s": scored.forward_s,
            "forward_cpu_s": scored.forward_cpu_s,
            "restore_s": self._residency.last_restore_s if restored else None,
            "backend": model.backend,
        }

    def _model(self, service: str) -> Any:
        if service not in self._models:
            from arl_gpu.encoders.similarity import Similarity  # numpy and tokenizers come with it

            model = Similarity(Path(self._config.directories[service]))
            self._residency.load(service, model.weights)
            self._models[service] = model
        return self._models[service]


def serve(channel: socket.socket, config: Config) -> None:
    """Until the other end is closed."""
    worker = _Worker(config)
    while (order := read_blocking(channel)) is not None:
        write_blocking(channel, worker.answer(order))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), Config(**json.loads(sys.argv[2])))
