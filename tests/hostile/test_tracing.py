"""Test that a program may trace its own processes and nothing else, and that tracing withholds no end of an action."""

import os
import platform

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from support.sandbox import Bench, a_command, a_program

TRACER = """
import ctypes, json, os, signal, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
TRACEME, CONT, GETREGS, SETREGS, ATTACH, SYSCALL, SEIZE, INTERRUPT = 0, 7, 12, 13, 16, 24, 0x4206, 0x4207

def ptrace(request, pid, address=0, data=0):
    return libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(address), ctypes.c_void_p(data))
"""
OF_ITS_OWN = """
child = os.fork()
if child == 0:
    ptrace(TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
ptrace(CONT, child)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
OF_THE_AGENT = """
agent = os.getppid()
def vector(buffer): return (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
def can_open(path):
    try:
        return bool(open(path, "rb"))
    except OSError:
        return False
buffer = ctypes.create_string_buffer(8)
mine, theirs = vector(buffer), (ctypes.c_size_t * 2)(int(sys.argv[1], 16) if sys.argv[1:] else 4096, 8)
print(
    ptrace(ATTACH, agent), ptrace(SEIZE, agent), libc.process_vm_readv(agent, mine, 1, theirs, 1, 0),
    libc.process_vm_writev(agent, mine, 1, theirs, 1, 0),
    *(can_open(f"/proc/{agent}/{name}") for name in ("mem", "environ", "maps", "auxv", "fd/3", "exe")),
)
"""
REPLACED_CALL = """
child = os.fork()
if child == 0:
    ptrace(TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    result = libc.syscall(39)
    os._exit(ctypes.get_errno() if result == -1 else 99)
os.waitpid(child, 0)
registers = (ctypes.c_ulonglong * 27)()
NUMBER, FIRST = 15, 14
while True:
    ptrace(SYSCALL, child)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        break
    ptrace(GETREGS, child, 0, ctypes.addressof(registers))
    if registers[NUMBER] == 39:
        registers[NUMBER], registers[FIRST] = 272, 0x10000000
        ptrace(SETREGS, child, 0, ctypes.addressof(registers))
print(os.waitstatus_to_exitcode(status))
"""
OF_THE_PARENT = "ptrace(TRACEME, 0)\n"
WITHHELD_END = """
traced = os.getpid()
ready, told = os.pipe()
tracer = os.fork()
if tracer == 0:
    os.setsid()
    os.write(told, b"x" if ptrace(SEIZE, traced) == 0 else b"-")
    time.sleep(600)
print(os.read(ready, 1))
"""


async def test_program_traces_its_own_process(sandbox: Bench) -> None:
    report = await sandbox.run(a_program(TRACER + OF_ITS_OWN))
    assert (report.outcome, report.stdout.data) == ("ok", b"7\n"), report


async def test_agent_cannot_be_traced_or_read(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    for _ in range(2):
        report = await sandbox.run(a_program(TRACER + OF_THE_AGENT, environment=trajectory))
        assert (report.outcome, set(report.stdout.data.split())) == ("ok", {b"-1", b"False"}), report


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers and numbers are those of x86-64")
async def test_tracer_cannot_make_a_refused_system_call(sandbox: Bench) -> None:
    report = await sandbox.run(a_program(TRACER + REPLACED_CALL))
    assert (report.outcome, report.stdout.data) == ("ok", b"1\n"), report  # EPERM


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("sys.exit(3)", ("user_error", 3, None)),
        ("os.kill(os.getpid(), signal.SIGUSR1)", ("user_error", None, 10)),
        ("os.execvp('true', ['true'])", ("ok", 0, None)),
        ("signal.raise_signal(signal.SIGTRAP); sys.exit(4)", ("user_error", 4, None)),
        ("os.fork() or os.abort(); os.wait(); sys.exit(5)", ("user_error", 5, None)),
    ],
)
async def test_program_that_is_traced_by_its_parent_ends_as_others(
    sandbox: Bench, trajectory: EnvironmentSpec, ending: str, expected: tuple[str, int | None, int | None]
) -> None:
    report = await sandbox.run(a_program(TRACER + OF_THE_PARENT + ending, environment=trajectory))
    assert (report.outcome, report.exit_code, report.signal) == expected, report
    assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"


async def test_stopped_tracee_of_its_parent_times_out_without_loss(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    stops = TRACER + OF_THE_PARENT + "os.kill(os.getpid(), signal.SIGSTOP)"
    report = await sandbox.run(a_program(stops, environment=trajectory, timeout_s=0.5))
    assert (report.outcome, report.environment_lost) == ("user_timeout", False), report
    assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"


async def test_tracer_that_withholds_the_end_is_killed_at_the_timeout(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    report = await sandbox.run(a_program(TRACER + WITHHELD_END, environment=trajectory, timeout_s=0.7))
    assert (report.stdout.data, report.environment_lost) == (b"b'x'\n", False), report
    assert report.outcome in ("ok", "user_timeout")
    assert report.run_us < 3_000_000
    assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="without a cgroup the agent stops every process that is left")
async def test_tracer_of_an_earlier_action_does_not_withhold_an_end(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    waiting = """
if os.fork() == 0:
    os.setsid()
    def is_victim(pid): return pid.isdigit() and "victim" in open(f"/proc/{pid}/cmdline").read()
    while not (found := [*filter(is_victim, os.listdir("/proc"))]):
        time.sleep(0.01)
    ptrace(SEIZE, int(found[0]))
    open("seized", "w").close()
    time.sleep(600)
"""
    if sandbox.state.driver == "landlock":
        pytest.skip("Landlock keeps actions from tracing each other")
    assert (await sandbox.run(a_program(TRACER + waiting, environment=trajectory))).leftover_processes == 1
    victim = "while [ ! -e seized ]; do :; done; echo done; exit 0"
    report = await sandbox.run(a_command("sh", "-c", victim, "victim", environment=trajectory, timeout_s=20))
    assert (report.stdout.data, report.environment_lost) == (b"done\n", False), report
    assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"
