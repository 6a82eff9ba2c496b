"""Test the sum of resident memory that replaces a memory cgroup, on real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from arl_cpu.launcher.agent import memory_watch
from arl_cpu.launcher.agent.memory_watch import MemoryWatch
from arl_cpu.launcher.isolation.unsafe_local import UnsafeLocalIsolation
from arl_cpu.launcher.linux.processes import ProcessInfo, descendants

MIB = 1 << 20
FORKS = """
import os, sys, time
kept = bytearray(b"x") * (100 << 20)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(60)
print("ready", flush=True)
sys.stdin.read()
"""
RESERVES = """
import mmap, sys
kept = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
print("ready", flush=True)
sys.stdin.read()
"""
WITHOUT_FIRST_THREAD = """
import ctypes, platform, sys, threading, time
def keep():
    kept = bytearray(b"x") * (100 << 20)
    while " Z " not in open("/proc/self/stat").read():
        pass
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=keep).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""


class OneProgram(UnsafeLocalIsolation):
    """An isolation whose processes are those of one program."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def other_processes(self) -> list[ProcessInfo]:
        itself = next(each for each in descendants(_parent_of(self._pid)) if each.pid == self._pid)
        return [itself, *descendants(self._pid)]


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@contextmanager
def running(program: str) -> Iterator[OneProgram]:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    isolation = OneProgram(process.pid)
    try:
        yield isolation
    finally:
        for each in descendants(process.pid):
            subprocess.run(["kill", "-KILL", str(each.pid)], check=False)
        process.kill()
        process.communicate()


def test_pages_shared_by_forks_count_once_above_the_limit() -> None:
    with running(FORKS) as program:
        assert watch_of(program, 200 * MIB).used_bytes() < 200 * MIB
        assert watch_of(program, 1000 * MIB).used_bytes() > 400 * MIB, "the fast sum is never too low"


def test_reserved_memory_does_not_count() -> None:
    with running(RESERVES) as program:
        assert watch_of(program, 64 * MIB).used_bytes() < 64 * MIB


def test_memory_of_a_process_without_its_first_thread_counts() -> None:
    with running(WITHOUT_FIRST_THREAD) as program:
        for limit in (50, 1000):
            assert watch_of(program, limit * MIB).used_bytes() > 100 * MIB


def test_exact_measurement_ends_if_a_message_waits() -> None:
    with running(FORKS) as program:
        watch = MemoryWatch(program, 50 * MIB, lambda: True)
        assert watch.used_bytes() == 50 * MIB
        assert watch_of(program, 50 * MIB).used_bytes() > 50 * MIB


def test_forks_with_large_page_tables_in_all_are_measured_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FORKS) as program:
        tables = [each.resident_memory().page_tables for each in program.other_processes()]
        monkeypatch.setattr(memory_watch, "_MAX_TABLE_BYTES", max(tables))
        assert watch_of(program, 200 * MIB).used_bytes() < 200 * MIB
        monkeypatch.setattr(memory_watch, "_MAX_TABLE_BYTES", 0)
        assert watch_of(program, 200 * MIB).used_bytes() > 200 * MIB, "a process with huge tables is not read"


def test_delay_follows_the_distance_to_the_limit() -> None:
    with running(RESERVES) as program:
        used = watch_of(program, 1 << 40).used_bytes()
        growth = (4 << 30) * len(os.sched_getaffinity(0))
        watch = watch_of(program, used + growth // 20)
        watch.used_bytes()
        assert 0.04 < watch.delay_s <= 0.06, "a twentieth of a second, but for what the program used meanwhile"
        near = watch_of(program, used + 4096)
        near.used_bytes()
        assert near.delay_s == 0.005


def watch_of(isolation: OneProgram, limit_bytes: int) -> MemoryWatch:
    return MemoryWatch(isolation, limit_bytes, lambda: False)
