"""Test that kernel objects of an environment are bounded, do not delay its end and do not reach another one."""

import asyncio
import os
from pathlib import Path

import pytest

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import EnvironmentSpec
from support.conditions import eventually
from support.sandbox import Bench, a_command, a_program, an_environment, cgroups_of

TRIGGERS = """
import os, time
opened = 0
for _ in range(3000):
    try:
        file = os.open("/proc/pressure/cpu", os.O_RDWR | os.O_NONBLOCK)
        os.write(file, b"some 150000 2000000\\0")
        opened += 1
    except OSError:
        pass
print(opened, flush=True)
time.sleep(600)
"""
TCP = """
import select, socket, sys
listener, kept, queued = socket.create_server(("127.0.0.1", 0), backlog=4000), [], 0
try:
    while queued < 512 << 20:
        one = socket.create_connection(listener.getsockname(), 1)
        kept += [one, listener.accept()[0]]
        one.setblocking(False)
        try:
            while True: queued += one.send(bytes(1 << 20))
        except BlockingIOError: pass
except OSError: pass
print(queued >> 20)
"""
UDP = """
import socket
queued, kept = 0, []
for _ in range(1500):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    one.bind(("127.0.0.1", 0)); one.setblocking(False); kept.append(one)
    try:
        for _ in range(20): one.sendto(bytes(60000), one.getsockname())
    except OSError: pass
for one in kept:
    try:
        while True: queued += len(one.recv(65536))
    except OSError: pass
print(queued >> 20)
"""
UNIX = """
import socket
queued, kept = 0, []
try:
    while queued < 512 << 20:
        pair = socket.socketpair(); kept.append(pair)
        for one in pair:
            one.setblocking(False)
            try:
                while True: queued += one.send(bytes(1 << 16))
            except BlockingIOError: pass
except OSError: pass
print(queued >> 20)
"""
LOCK = """
import fcntl, os, sys
found = []
for path in sys.argv[2:]:
    file = os.open(path, os.O_RDONLY)
    try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: found.append(path)
print(found, flush=True)
if sys.argv[1] == "hold": sys.stdin.read()
"""
WATCH = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
for path in sys.argv[1:]: assert libc.inotify_add_watch(watch, path.encode(), 0xFFF) > 0
print("watching", flush=True)
print(bool(select.select([watch, 0], [], [])[0] == [0]))
"""
MANY_FILES = """
import itertools, os
try:
    for number in itertools.count():
        if number % 1000 == 0: os.mkdir(f"d{number}")
        os.mknod(f"d{number // 1000 * 1000}/{number}")
except OSError: pass
while True: pass
"""
SHARED = ("/usr", "/usr/bin", "/usr/bin/env", "/etc/ssl/certs", "/etc/os-release")


def has_own_tree(sandbox: Bench) -> bool:
    return sandbox.state.driver == "namespaces"


async def test_pressure_triggers_do_not_delay_a_timeout(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    report = await sandbox.run(a_program(TRIGGERS, environment=trajectory, timeout_s=1.5))
    assert (report.outcome, report.stdout.data) == ("user_timeout", b"0\n"), report
    assert report.run_us < 2_500_000


@pytest.mark.parametrize("source", [TCP, UDP, UNIX], ids=["tcp", "udp", "unix"])
async def test_socket_buffers_are_bounded_by_the_memory(sandbox: Bench, source: str) -> None:
    if source is not UNIX and not has_own_tree(sandbox):
        pytest.skip("this driver refuses these sockets")
    if not has_own_tree(sandbox) and sandbox.enforcement["memory"] != "enforced":
        pytest.skip("all environments share a network namespace, and no cgroup counts the queues")
    environment = an_environment(scope="ephemeral", memory_mib=64, pids=16)
    report = await sandbox.run(a_program(source, environment=environment, timeout_s=20))
    queued = report.stdout.data.strip()
    if queued:
        assert int(queued) < 96, report
    else:
        assert (report.outcome, report.reason) == ("limit_exceeded", "memory"), report


@pytest.mark.skipif(not Path("/sys/fs/cgroup/memory/memory.force_empty").exists(), reason="this host has no cgroup v1")
async def test_removed_environments_leave_no_memory_groups(sandbox: Bench) -> None:
    if sandbox.enforcement.get("memory") != "enforced":
        pytest.skip("this launcher makes no memory cgroups, and the machine's count is that of others")
    cold = sorted(Path("/usr").glob("share/doc/*/*"))[:40]
    files = [path for path in cold if path.is_file() and not path.is_symlink()][:15]
    assert len(files) > 10
    before = memory_groups()
    for path in files:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
        await sandbox.run(a_command("cat", str(path)))
    assert sandbox.launcher is not None
    launcher = sandbox.launcher
    await eventually(lambda: cgroups_of(launcher) == [])
    assert memory_groups() - before < len(files) // 2


def memory_groups() -> int:
    """Return the number of memory groups that the kernel has, including removed ones."""
    rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()]
    return next(int(row[2]) for row in rows if row[0] == "memory")


async def test_outputs_that_a_process_keeps_open_are_bounded(sandbox: Bench) -> None:
    """Each action leaves a process that holds its outputs; the launcher reads only the newest of them."""
    assert sandbox.launcher is not None
    files = Path(f"/proc/{sandbox.launcher.pid}/fd")
    before = len(os.listdir(files))
    wide = an_environment(pids=200)
    for _ in range(60):
        await sandbox.run(a_command("sh", "-c", "sleep 600 &", environment=wide))
    assert len(os.listdir(files)) - before < 80
    assert (await sandbox.run(a_command("echo", "alive", environment=wide))).stdout.data == b"alive\n"
    await sandbox.destroy(wide.id)


@pytest.mark.slow
async def test_number_of_files_does_not_delay_a_timeout(sandbox: Bench) -> None:
    environment = an_environment(scope="ephemeral", memory_mib=1024, disk_mib=8192)
    report = await sandbox.run(a_program(MANY_FILES, environment=environment, timeout_s=6))
    if has_own_tree(sandbox):
        assert (report.outcome, report.run_us < 7_500_000) == ("user_timeout", True), report


async def test_locks_on_system_files_do_not_reach_another_environment(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    if not has_own_tree(sandbox):
        pytest.skip("this driver shows the inodes of the host")
    hold = a_command("python3", "-c", LOCK, "hold", *SHARED, environment=trajectory, stdin_open=True)
    holding = await sandbox.begin(hold)
    await written(sandbox, hold.fence)
    report = await sandbox.run(a_command("python3", "-c", LOCK, "look", *SHARED))
    assert report.stdout.data == b"[]\n", report
    await sandbox.executor.feed_stdin(hold.fence, b"", offset=None, end=True)
    assert (await holding).stdout.data == b"[]\n"


async def test_watches_on_system_files_do_not_see_another_environment(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    if not has_own_tree(sandbox):
        pytest.skip("this driver shows the inodes of the host")
    watch = a_command("python3", "-c", WATCH, *SHARED, environment=trajectory, stdin_open=True)
    watching = await sandbox.begin(watch)
    await written(sandbox, watch.fence)
    look = "ls /usr /usr/bin >/dev/null; env >/dev/null; cat /etc/os-release /etc/ssl/certs/* >/dev/null 2>&1"
    await sandbox.run(a_command("sh", "-c", look))
    await sandbox.executor.feed_stdin(watch.fence, b"x", offset=None, end=False)
    assert (await watching).stdout.data == b"watching\nTrue\n"


async def written(sandbox: Bench, fence: Fence) -> None:
    """Wait for the first output of an attempt."""
    await asyncio.wait_for(sandbox.executor.poll_output(fence, stdout=0, stderr=0), 15)
