"""Test the worker client against real worker processes, some of which misbehave."""

import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from arl_gpu.catalog.service_files import installed_services
from arl_gpu.dispatch.device_groups import DeviceGroups
from arl_gpu.worker.client import WORKER_COMMAND, WorkerClient, WorkerDied
from arl_gpu.worker.host_memory import HostMemory
from arl_gpu.worker.process import WorkerConfig
from support.conditions import eventually

CONFIG = WorkerConfig(
    services={"broken": {"name": "broken", "kind": "similarity", "directory": "/nowhere"}},
    device_mib=128,
    copy_mib_per_s=None,
)
A = {"text": "a", "reference": "b"}
BEGIN = """
import os, signal, socket, sys
from arl_gpu.worker.messages import read_blocking, write_blocking
channel = socket.socket(fileno=int(sys.argv[1]))
times = ("forward_s", "forward_cpu_s", "model_cpu_s", "model_s", "restore_s")
figures = dict.fromkeys((*times, "texts", "tokens", "padding", "used_bytes"), 0)
figures |= {"moves": {}, "fitting": []}
"""
GOOD = """
while (order := read_blocking(channel)) is not None:
    entries = [{"score": float(len(item["text"]))} for item in order["items"]]
    write_blocking(channel, figures | {"entries": entries, "states": {}})
"""
STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"
MISBEHAVING = {
    "it says nothing": ("read_blocking(channel); signal.pause()", "did not respond within 0.5 s"),
    "it is stopped": (STOPPED, "did not respond within 0.5 s"),
    "it ends": ("read_blocking(channel); sys.exit(3)", "ended with exit code 3"),
    "it ends in a message": (
        "read_blocking(channel); channel.send(b'\\0\\0\\0\\x09{'); sys.exit(3)",
        "ended with exit code 3",
    ),
    "no JSON": ("read_blocking(channel); channel.send(b'\\0\\0\\0\\x04nope'); signal.pause()", "JSONDecodeError"),
    "no message": ("read_blocking(channel); channel.send(b'Traceback'); signal.pause()", "a message of 1416782179"),
    "no answer": (
        "read_blocking(channel); write_blocking(channel, {}); signal.pause()",
        "entries, fitting, ",
    ),
    "no object": ("read_blocking(channel); write_blocking(channel, []); signal.pause()", "not an object"),
    "an entry too few": (
        "read_blocking(channel); write_blocking(channel, figures | {'entries': [], 'states': {}}); signal.pause()",
        "0 entries for 1 items",
    ),
}

Start = Callable[..., WorkerClient]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    workers: list[WorkerClient] = []

    def started(
        script: str | None = None, *, limit_s: float = 30.0, command: tuple[str, ...] = WORKER_COMMAND
    ) -> WorkerClient:
        argv = command if script is None else (sys.executable, "-P", "-c", BEGIN + script)
        workers.append(WorkerClient(CONFIG, threads=1, limit_s=limit_s, command=argv))
        return workers[-1]

    yield started
    for worker in workers:
        await worker.end()


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def dying(worker: WorkerClient, saying: str) -> AsyncIterator[None]:
    with pytest.raises(WorkerDied, match=saying):
        yield
    assert worker.pid is None


@pytest.mark.parametrize("how", MISBEHAVING)
async def test_misbehaving_worker_fails_its_order_and_is_ended(start: Start, how: str) -> None:
    script, saying = MISBEHAVING[how]
    worker = start(script, limit_s=0.5 if "0.5" in saying else 30.0)
    async with dying(worker, saying):
        await worker.score("minilm", [A])


@pytest.mark.parametrize("text", ["日本語 ü", "\ud800", "\0"])
async def test_any_text_reaches_the_worker_unchanged(start: Start, text: str) -> None:
    answer = await start(GOOD.replace('float(len(item["text"]))', 'item["text"]')).score(
        "minilm", [{"text": text, "reference": "b"}]
    )
    assert answer["entries"] == [{"score": text}]


async def test_worker_inherits_gpu_and_library_variables_but_no_secrets(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"CUDA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/opt/driver", "NCCL_DEBUG": "WARN"}
    for name, value in {**said, "TANGRAM_SERVICE_TOKEN": "secret", "WANDB_API_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    answer = await start(GOOD.replace('float(len(item["text"]))', "dict(os.environ)")).score("minilm", [A])
    told = answer["entries"][0]["score"]
    assert told.items() >= said.items()
    assert "secret" not in told.values()


async def test_stopped_worker_is_killed_while_an_order_is_being_sent(start: Start) -> None:
    worker = start(STOPPED, limit_s=0.5)
    async with dying(worker, "did not respond within 0.5 s"):
        await worker.score("minilm", [{"text": "a" * (4 << 20), "reference": "b"}])


ASKING = """
from arl_gpu.worker.messages import PROGRESS
for _ in range(10_000):
    write_blocking(channel, PROGRESS)
"""


async def test_progress_sent_before_a_large_order_is_read_is_received(start: Start) -> None:
    answer = await start(ASKING + GOOD, limit_s=10.0).score("minilm", [{"text": "a" * (4 << 20), "reference": "b"}])
    assert answer["entries"] == [{"score": float(4 << 20)}]


BEYOND_USE = """
import json
from arl_gpu.worker import process
from arl_gpu.devices.cpu_device import CpuDevice
class Beyond(CpuDevice):
    def check(self):
        raise RuntimeError("an illegal memory access was encountered")
process.create_device = lambda name, **about: Beyond(1 << 20)
process.serve(channel, process.WorkerConfig(**json.loads(sys.argv[2])))
"""


async def test_unusable_device_ends_its_worker(start: Start) -> None:
    worker = start(BEYOND_USE)
    async with dying(worker, "ended with exit code 1"):
        await worker.score("broken", [A])


async def test_worker_that_cannot_start_raises_worker_died_without_leaking_files(start: Start) -> None:
    before = files_open()
    worker = start(command=("/nowhere/python",))
    async with dying(worker, "could not be started: .*No such file"):
        await worker.score("minilm", [A])
    await eventually(lambda: files_open() == before)


async def test_worker_that_died_while_idle_is_restarted_without_failures(start: Start) -> None:
    worker = start(GOOD)
    await worker.score("minilm", [A])
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, first, os.WEXITED | os.WNOWAIT)
    answer = await worker.score("minilm", [{"text": "aa", "reference": "b"}])
    assert answer["entries"] == [{"score": 2.0}]
    assert worker.pid != first


async def test_unreadable_model_is_reported_and_the_worker_continues(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = start()
    for _ in range(2):
        answer = await worker.score("broken", [A])
        assert (answer["error"], answer["used_bytes"]) == ("forward_failed", 0)
        assert answer["message"] == "FileNotFoundError: No such file or directory", "whoever asked reads it"
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["service"], line["level"]) for line in lines] == [("gpu-worker", "warning")] * 2
    assert all(
        line["message"].startswith("forward_failed: service or engine broken: FileNotFoundError") for line in lines
    )


async def test_service_offered_at_run_time_is_known_after_a_restart(start: Start) -> None:
    worker = start()
    await worker.evict("late")
    assert worker.pid is None
    assert (await worker.restore("late"))["error"] == "order_failed"
    await worker.offer({"name": "late", "kind": "no such kind"})
    unknown = "LookupError: the kind 'no such kind' of reward service does not exist"
    assert unknown in (await worker.score("late", [A]))["message"]
    await worker.end()
    assert unknown in (await worker.score("late", [A]))["message"]
    await worker.forget("late")
    assert (await worker.score("late", [A]))["message"] == "KeyError: 'late'"


async def test_re_registered_service_is_loaded_again_from_the_same_directory(start: Start, tmp_path: Path) -> None:
    [files] = installed_services(["minilm"])
    (tmp_path / "weights").symlink_to(files.directory)
    registered = replace(files, directory=tmp_path / "weights", registered_at=1.0)
    worker = start()
    await worker.offer(registered.spec)
    assert "entries" in await worker.score("minilm", [A])
    (tmp_path / "weights").unlink()
    await worker.offer(registered.spec)
    assert "entries" in await worker.score("minilm", [A]), "nobody registered it anew"
    await worker.offer(replace(registered, registered_at=2.0).spec)
    assert (await worker.score("minilm", [A]))["error"] == "forward_failed"


@pytest.mark.slow
async def test_two_workers_share_weights_in_host_memory_and_score_equally() -> None:
    [files] = installed_services(["minilm"])
    config = WorkerConfig(services={"minilm": files.spec}, device_mib=128, copy_mib_per_s=None)
    host = HostMemory()
    workers = [WorkerClient(config, threads=1, limit_s=60.0, host=host) for _ in range(2)]
    answers = [await worker.score("minilm", [A]) for worker in workers]
    maps = [Path(f"/proc/{worker.pid}/maps").read_text().splitlines() for worker in workers]
    inodes = {line.split()[4] for lines in maps for line in lines if "memfd:weights-minilm" in line}
    for worker in workers:
        await worker.end()
    host.close()
    assert answers[0]["entries"] == answers[1]["entries"]
    assert "score" in answers[0]["entries"][0]
    assert len(inodes) == 1
    assert all(any("memfd:weights-minilm" in line for line in lines) for lines in maps)


@pytest.mark.slow
async def test_workers_evict_unpinned_weights_from_host_memory_for_each_other() -> None:
    [files] = installed_services(["minilm"])
    services = {name: files.spec | {"name": name} for name in "abc"}
    config = WorkerConfig(services=services, device_mib=128, copy_mib_per_s=None)
    size = (await (alone := WorkerClient(config, threads=1, limit_s=60.0)).score("a", [A]))["used_bytes"]
    await alone.end()
    host = HostMemory(2 * size)
    one, other = (WorkerClient(config, threads=1, limit_s=60.0, host=host) for _ in range(2))
    answers = [await one.score("a", [A]), await one.score("b", [A])]
    answers += [await other.restore("c"), await other.score("c", [A]), await one.score("b", [A])]
    assert all(answer.get("entries", answers[0]["entries"]) == answers[0]["entries"] for answer in answers), answers
    assert (answers[2]["states"]["c"], one.has("a"), one.has("b")) == ("resident", False, True)
    assert host.written_bytes == host.reserved_bytes == 2 * size
    for name in "bc":
        await (one if name == "b" else other).pin(name, on=True)
    refused = await other.score("a", [A])
    assert (refused["error"], refused["message"]) == (
        "no_room",
        f"a needs {size} bytes of host memory, but all host memory is used",
    )
    await one.end()
    await other.pin("c", on=False)
    again = await other.score("a", [A])
    assert again.get("entries") == answers[0]["entries"], ("a worker that ended has nothing", again)
    await other.end()
    await host.release_unmapped()
    assert (host.reserved_bytes, host.written_bytes) == (0, 0)
    host.close()


async def test_residency_moves_before_a_host_memory_retry_are_reported_once() -> None:
    script = """
moves = {"restored_s": [0.5], "evicted": 1, "prefetched": 1, "failed": 0, "cooled": 0}
figures |= {"moves": moves, "states": {}, "entries": [{"score": 1.0}]}
read_blocking(channel)
write_blocking(channel, figures | {"error": "host_full", "message": "", "host_bytes": 4096})
while (order := read_blocking(channel)) is not None:
    write_blocking(channel, figures)
"""
    host = HostMemory(8192)
    command = (sys.executable, "-P", "-c", BEGIN + script)
    worker = WorkerClient(CONFIG, threads=1, limit_s=30.0, host=host, command=command)
    first, second = await worker.score("a", [A]), await worker.score("a", [A])
    await worker.end()
    host.close()
    assert (first["moves"]["restored_s"], first["moves"]["evicted"]) == ([0.5, 0.5], 2)
    assert (second["moves"]["restored_s"], second["moves"]["evicted"]) == ([0.5], 1)


@pytest.mark.slow
async def test_host_memory_of_removed_services_and_dead_workers_is_freed() -> None:
    [files] = installed_services(["minilm"])
    config = WorkerConfig(
        services={name: files.spec | {"name": name} for name in "ab"}, device_mib=128, copy_mib_per_s=None
    )
    host = HostMemory()
    worker = WorkerClient(config, threads=1, limit_s=60.0, host=host)
    for name in "ab":
        await worker.restore(name)
    both = host.written_bytes
    await worker.forget("a")
    assert both == 2 * host.written_bytes > 0
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    going = asyncio.create_task(DeviceGroups([worker]).score("b", 0, [A], lambda number: ()))
    await asyncio.sleep(0)
    os.kill(worker.pid, signal.SIGKILL)
    assert "worker_died" in (await going).response["error"]
    assert (host.written_bytes, host.reserved_bytes) == (0, 0)
    host.close()


@pytest.mark.slow
async def test_worker_restarted_after_a_kill_scores_the_same() -> None:
    [files] = installed_services(["minilm"])
    config = WorkerConfig(services={"minilm": files.spec}, device_mib=128, copy_mib_per_s=200.0)
    worker = WorkerClient(config, threads=1, limit_s=60.0)
    first = await worker.score("minilm", [A])
    for op in ("restore", "score"):
        await worker.evict("minilm")
        going = asyncio.create_task(worker.restore("minilm") if op == "restore" else worker.score("minilm", [A]))
        await asyncio.sleep(0)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await going
        again = await worker.score("minilm", [A])
        assert (again["entries"], again["used_bytes"]) == (first["entries"], first["used_bytes"])
    await worker.end()


def faults_of(pid: int | None) -> int:
    """Return the number of page faults of the process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
async def test_forward_pass_reuses_the_memory_of_the_previous_one() -> None:
    spec = next(iter(installed_services(["minilm"]))).spec
    worker = WorkerClient(replace(CONFIG, services={"minilm": spec}), threads=1, limit_s=60.0)
    text = "one of several texts, each of which has more than ten words"
    items = [{"text": f"{number} {text}", "reference": f"{text} {number}"} for number in range(8)]
    try:
        for _ in range(2):
            await worker.score("minilm", items)
        before = faults_of(worker.pid)
        await worker.score("minilm", items)
        assert faults_of(worker.pid) - before < 500
    finally:
        await worker.end()
