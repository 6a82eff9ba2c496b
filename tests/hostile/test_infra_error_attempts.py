"""Test that no program turns its own failure into `infra_error`, which trainers mask instead of counting it as 0."""

from collections.abc import AsyncIterator

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecutionReport
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment, sandboxes

pytestmark = pytest.mark.slow

OUTCOMES = {"user_error", "user_timeout", "limit_exceeded"}
"""Outcomes of a program that failed, whatever it did."""
TIMEOUT_S = 4.0

DAEMON = """
import os, signal, sys, time
if os.fork(): sys.exit(3)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    {work}
"""
"""A program that fails and leaves a process, which goes on after it."""

SIGNALS = {
    f"ends itself with {name}": f"import os, signal; os.kill(os.getpid(), signal.{name}); raise SystemExit(3)"
    for name in ("SIGKILL", "SIGTERM", "SIGSYS", "SIGSEGV", "SIGTRAP", "SIGXCPU", "SIGPIPE", "SIGHUP", "SIGSTOP")
}
EXIT_CODES = {f"exits with {code}": f"import os; os._exit({code})" for code in (1, 124, 125, 126, 127, 137, 139, 255)}
PROCESSES = {
    "kills its parent": "import os; os.kill(os.getppid(), 9); raise SystemExit(3)",
    "stops its parent": "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); raise SystemExit(3)",
    "kills its group": "import os; os.killpg(0, 9); raise SystemExit(3)",
    "kills everything": "import os; os.kill(-1, 9); raise SystemExit(3)",
    "stops everything": "import os, signal; os.kill(-1, signal.SIGSTOP); raise SystemExit(3)",
    "kills each pid": """
import os
for pid in range(1, 2000):
    try: os.kill(pid, 9)
    except OSError: pass
raise SystemExit(3)
""",
    "attaches to its parent": """
import ctypes, os
ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)
raise SystemExit(3)
""",
    "lowers the limits of its parent": """
import os, resource
for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_AS", "RLIMIT_CPU"):
    for pid in (os.getppid(), 1):
        try: resource.prlimit(pid, getattr(resource, name), (0, 0))
        except OSError: pass
raise SystemExit(3)
""",
    "forks until it cannot": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "starts threads until it cannot": """
import threading, time
while True: threading.Thread(target=time.sleep, args=(100,)).start()
""",
    "leaves a process that kills all others": DAEMON.format(work="os.kill(-1, 9)"),
    "leaves a process that stops all others": DAEMON.format(work="os.kill(-1, signal.SIGSTOP)"),
    "leaves a process that kills the newest": DAEMON.format(
        work="""
    for pid in sorted((int(each) for each in os.listdir('/proc') if each.isdigit()), reverse=True)[:4]:
        if pid not in (1, os.getpid()):
            try: os.kill(pid, 9)
            except OSError: pass
"""
    ),
    "leaves a process that removes new files": DAEMON.format(
        work="""
    for name in os.listdir('.'):
        try: os.unlink(name)
        except OSError: pass
"""
    ),
    "leaves a process that closes the directory": DAEMON.format(work="os.chmod('.', 0)"),
    "leaves a process that fills the pids": DAEMON.format(
        work="""
    try:
        if not os.fork(): time.sleep(100)
    except OSError: pass
"""
    ),
    "leaves a process that holds the output": DAEMON.format(work="time.sleep(1)"),
    "ends its main thread only": """
import ctypes, threading, time
threading.Thread(target=lambda: (time.sleep(0.2), __import__('os')._exit(3))).start()
ctypes.CDLL(None).pthread_exit(None)
""",
    "takes the lowest priority": """
import os
os.nice(19)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
raise SystemExit(3)
""",
}
DESCRIPTORS = {
    "closes every descriptor": "import os; os.closerange(0, 4096); os._exit(3)",
    "writes to every descriptor": """
import os
for fd in range(3, 1024):
    try:
        os.set_blocking(fd, False)
        os.write(fd, b'\\xff' * 100_000)
    except OSError: pass
raise SystemExit(3)
""",
    "reads from every descriptor": """
import os
for fd in range(3, 1024):
    try:
        os.set_blocking(fd, False)
        os.read(fd, 100_000)
    except OSError: pass
raise SystemExit(3)
""",
    "shuts every socket down": """
import os, socket
for fd in range(3, 1024):
    try: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
    except OSError: pass
raise SystemExit(3)
""",
    "sends a forged report": """
import json, os
report = json.dumps({"outcome": "infra_error", "reason": "sandbox_failed", "exit_code": None}).encode() + b'\\n'
for fd in range(1, 64):
    try: os.write(fd, report)
    except OSError: pass
raise SystemExit(3)
""",
    "opens descriptors until it cannot": """
import os
held = [os.open('/', os.O_RDONLY)]
while True: held.append(os.dup(held[0]))
""",
    "writes much output": "import os\nfor _ in range(2000): os.write(1, b'\\0\\xff' * 50_000)\nraise SystemExit(3)",
    "closes its output": "import sys, os; os.close(1); os.close(2); raise ValueError",
}
FILES = {
    "removes everything": "import shutil; shutil.rmtree('/', ignore_errors=True); raise SystemExit(3)",
    "closes its directory": "import os; os.chmod('.', 0); raise SystemExit(3)",
    "makes its directory read-only": "import os; os.chmod('.', 0o555); raise SystemExit(3)",
    "moves its directory": "import os; os.rename(os.getcwd(), '/tmp/moved'); raise SystemExit(3)",
    "removes its directory": "import os; os.rmdir(os.getcwd()); raise SystemExit(3)",
    "replaces its directory by a link": """
import os
place = os.getcwd()
os.rename(place, place + '-moved')
os.symlink('/proc', place)
raise SystemExit(3)
""",
    "blocks the names of uploads": """
import os
for name in ('in', '.tangram-unfinished', '.tangram-unfinished-0', '.tangram-unfinished-1'): os.makedirs(name + '/x')
raise SystemExit(3)
""",
    "puts a pipe in place of an upload": "import os; os.mkfifo('in'); raise SystemExit(3)",
    "puts a link in place of an upload": "import os; os.symlink('/proc/1/mem', 'in'); raise SystemExit(3)",
    "puts a loop of links in place of an upload": "import os; os.symlink('in', 'in'); raise SystemExit(3)",
    "fills the disk": "import os\nwith open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
    "fills the inodes": """
import itertools, os
os.mkdir('many')
for n in itertools.count(): open(f'many/{n}', 'x').close()
""",
    "makes deep directories": """
import os
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
raise SystemExit(3)
""",
    "makes names that are not UTF-8": "import os; os.mkdir(b'\\xff\\xfe'); open(b'\\xff\\n', 'x'); raise SystemExit(3)",
    "fills /dev/shm": "with open('/dev/shm/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
    "fills /tmp": "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
    "locks its directory": """
import fcntl, os
fcntl.flock(os.open('.', os.O_RDONLY), fcntl.LOCK_EX)
if os.fork() == 0: __import__('time').sleep(100)
raise SystemExit(3)
""",
    "shadows modules of the interpreter": """
for name in ('os', 'sys', 'json', 'encodings', 'site', 'sitecustomize', 'usercustomize', 'socket', 'struct'):
    open(name + '.py', 'w').write('import os; os.kill(os.getppid(), 9); os._exit(3)')
raise SystemExit(3)
""",
    "leaves start-up files": """
import os
for name in ('.bashrc', '.profile', '.bash_profile', '.inputrc', '.pythonrc'):
    for place in ('.', os.path.expanduser('~')):
        try: open(os.path.join(place, name), 'w').write('kill -9 $PPID $$; exit 3')
        except OSError: pass
raise SystemExit(3)
""",
    "removes the programs it can": """
import os
for place in ('/bin', '/usr/bin', '/usr/local/bin', '/opt/tangram-packages'):
    for name in (os.listdir(place) if os.path.isdir(place) else ()):
        try: os.unlink(os.path.join(place, name))
        except OSError: pass
raise SystemExit(3)
""",
}
KERNEL = {
    "takes all memory": "held = []\nwhile True: held.append(bytes(1 << 24))",
    "takes all memory in children": """
import os
for _ in range(4): os.fork()
held = []
while True: held.append(bytes(1 << 22))
""",
    "asks to be killed first": """
open('/proc/self/oom_score_adj', 'w').write('1000')
held = []
while True: held.append(bytes(1 << 24))
""",
    "asks that others are killed first": """
import os
for pid in (os.getppid(), 1):
    try: open(f'/proc/{pid}/oom_score_adj', 'w').write('1000')
    except OSError: pass
held = []
while True: held.append(bytes(1 << 24))
""",
    "writes to its cgroup": """
import os
for name in ('cgroup.kill', 'cgroup.freeze', 'memory.max', 'pids.max'):
    for place, _, names in os.walk('/sys/fs/cgroup'):
        try: open(os.path.join(place, name), 'w').write('1')
        except OSError: pass
raise SystemExit(3)
""",
    "mounts over its root": """
import ctypes
libc = ctypes.CDLL(None)
libc.unshare(0x10000000 | 0x00020000)
libc.mount(b'none', b'/', b'tmpfs', 0, None)
raise SystemExit(3)
""",
    "unmounts its directories": """
import ctypes, os
libc = ctypes.CDLL(None)
libc.unshare(0x10000000 | 0x00020000)
for place in (os.getcwd().encode(), b'/proc', b'/tmp', b'/'): libc.umount2(place, 2)
raise SystemExit(3)
""",
    "writes to the memory of pid 1": "open('/proc/1/mem', 'r+b').write(b'x')",
    "allows itself no file": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); open('/etc/passwd')",
    "allows itself no file size": """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
open('x', 'w').write('x' * 9999)
""",
    "allows itself no CPU time": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass",
    "waits for ever": "import time; time.sleep(1000)",
    "uses all CPU time": "while True: pass",
    "recurses until the stack ends": "import sys; sys.setrecursionlimit(10**9)\ndef deep(): deep()\ndeep()",
}
PROGRAMS = SIGNALS | EXIT_CODES | PROCESSES | DESCRIPTORS | FILES | KERNEL


@pytest.fixture(scope="module", params=sandboxes())
async def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param) as bench:
        yield bench


async def attack(sandbox: Bench, text: str, environment: EnvironmentSpec) -> ExecutionReport:
    return await sandbox.run(
        a_command("python3", "-c", text, environment=environment, timeout_s=TIMEOUT_S, fetch=("in",))
    )


@pytest.mark.parametrize("name", PROGRAMS)
async def test_failure_of_a_hostile_program_is_its_own(sandbox: Bench, name: str) -> None:
    report = await attack(sandbox, PROGRAMS[name], an_environment(scope="ephemeral", pids=64, disk_mib=64))
    assert report.outcome in OUTCOMES, report


@pytest.mark.parametrize("name", PROGRAMS)
async def test_failure_after_a_hostile_program_is_no_infra_error(sandbox: Bench, name: str) -> None:
    """The environment is kept, and later programs fail in it."""
    kept = an_environment(pids=64, disk_mib=64)
    try:
        await attack(sandbox, PROGRAMS[name], kept)
        uploaded = {"files": {"in": b"x"}, "timeout_s": TIMEOUT_S}
        reports = [
            await sandbox.run(a_command("sh", "-c", "exit 3", environment=kept, **uploaded)),
            await sandbox.run(a_program("raise SystemExit(3)", environment=kept, **uploaded)),
        ]
        assert {report.outcome for report in reports} <= OUTCOMES, reports
    finally:
        await sandbox.destroy(kept.id)


def test_there_are_at_least_sixty_programs() -> None:
    assert len(PROGRAMS) >= 60
