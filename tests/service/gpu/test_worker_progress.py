"""Test workers while their models are loaded from files and copied to the device."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import Thread
from time import monotonic

import pytest

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.worker.client import WORKER_COMMAND, WorkerClient
from arl_gpu.worker.messages import PROGRESS, read_blocking, write_blocking
from arl_gpu.worker.process import WorkerConfig, serve

SPEC = next(iter(installed_services(["minilm"]))).spec
CONFIG = WorkerConfig(services={name: SPEC | {"name": name} for name in "abc"}, device_mib=512, copy_mib_per_s=None)
A = {"text": "a", "reference": "b"}


@asynccontextmanager
async def a_worker(config: WorkerConfig) -> AsyncIterator[WorkerClient]:
    worker = WorkerClient(config, threads=1, limit_s=60.0, command=WORKER_COMMAND)
    try:
        yield worker
    finally:
        await worker.end()


def test_worker_reports_progress_while_it_reads_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress report restarts the timeout of the caller that waits for the worker."""
    monkeypatch.setattr("arl_gpu.worker.process.PROGRESS_BYTES", 8 << 20)
    ours, its = socket.socketpair()
    thread = Thread(target=serve, args=(its, CONFIG))
    thread.start()
    write_blocking(ours, {"op": "restore", "name": "a"})
    steps = 0
    while (answer := read_blocking(ours)) == PROGRESS:
        steps += 1
    ours.close()
    thread.join()
    its.close()
    assert answer is not None
    assert answer["states"]["a"] == "resident"
    assert steps > 5


async def test_batch_reports_its_restore_time_and_prefetches_the_next_service() -> None:
    async with a_worker(replace(CONFIG, copy_mib_per_s=200)) as worker:
        for name in "abc":
            await worker.restore(name)
        for name in "abc":
            await worker.evict(name)
        begun = monotonic()
        first = await worker.score("a", [A], waiting=["b"])
        took_s = monotonic() - begun
        second = await worker.score("b", [A], waiting=["c"])
    assert 0.42 < first["restore_s"] + first["model_s"] < took_s, "86 MiB at 200 MiB/s, and nothing counts twice"
    assert (first["moves"]["prefetched"], second["moves"]["prefetched"]) == (1, 1)
    assert second["states"]["c"] in ("restoring", "resident")
    assert first["entries"] == second["entries"]
