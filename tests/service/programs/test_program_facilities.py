"""Test what programs find in a plain container: debuggers, terminals, interfaces, accounts and large files."""

import shutil
from collections.abc import AsyncIterator

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecutionReport
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment

PTY = """
import os, pty, select
master, slave = pty.openpty()
os.write(slave, b"text\\n")
print(os.read(master, 9), os.ttyname(slave), os.isatty(slave), os.stat(os.ttyname(slave)).st_uid == os.getuid())
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("tty", ["tty"])
print(os.read(terminal, 99), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(os.path.exists("/dev/tty"), os.path.realpath("/dev/ptmx"))
"""
ALL_TERMINALS = """
import os, pty
opened = []
try:
    while True: opened.append(pty.openpty())
except OSError:
    print(len(opened))
"""
INTERFACES = """
import ctypes, socket
print(socket.if_nameindex(), ctypes.CDLL(None).getifaddrs(ctypes.byref(ctypes.c_void_p())))
print(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE).getsockname()[0] == 0)
refused = []
for protocol in range(1, 23):
    try: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, protocol)
    except OSError: refused.append(protocol)
print(refused == [*range(1, 23)])
"""
SPARSE = """
import mmap, os
with open("data", "w+b") as file:
    file.truncate(1 << 34)
    mapped = mmap.mmap(file.fileno(), 1 << 34)
    mapped[5] = mapped[-1] = 7
print(os.stat("data").st_size, os.stat("data").st_blocks * 512 < 1 << 20)
"""
ACCOUNTS = """
import getpass, grp, os, pwd
print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir == os.environ["HOME"], grp.getgrgid(os.getgid()).gr_name)
print(os.path.expanduser("~") == os.path.expanduser("~sandbox"), pwd.getpwnam("root").pw_uid)
"""
ASAN_RIGHT = "int main() { int *a = new int[2]; a[0] = 1; int r = a[0]; delete[] a; return r - 1; }"
ASAN_LEAK = "int main() { new int[25]; }"


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("facilities"), "namespaces") as bench:
        yield bench


@pytest.fixture
async def kept(bench: Bench) -> AsyncIterator[EnvironmentSpec]:
    environment = an_environment(memory_mib=512, disk_mib=64)
    yield environment
    await bench.destroy(environment.id)


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if shutil.which(name, path="/usr/bin:/bin:/usr/local/bin") is None]
    return pytest.mark.skipif(bool(missing), reason=f"this machine has no {', '.join(missing)}")


async def shell(bench: Bench, text: str, environment: EnvironmentSpec) -> ExecutionReport:
    return await bench.run(a_command("sh", "-c", text, environment=environment, timeout_s=60))


async def printed(bench: Bench, source: str, environment: EnvironmentSpec) -> list[str]:
    report = await bench.run(a_program(source, environment=environment))
    assert report.outcome == "ok", report
    return report.stdout.data.decode().splitlines()


async def test_environment_has_its_own_terminals(bench: Bench, kept: EnvironmentSpec) -> None:
    first, second, third = await printed(bench, PTY, kept)
    assert first == "b'text\\r\\n' /dev/pts/0 True True"
    assert (second[:12], second[-1]) == ("b'/dev/pts/1", "0")
    assert third == "True /dev/pts/ptmx"
    assert (await shell(bench, "ls /dev/pts; echo x >/dev/tty", kept)).stdout.data == b"ptmx\n"


async def test_terminals_of_an_environment_are_bounded_and_separate(bench: Bench, kept: EnvironmentSpec) -> None:
    other = an_environment(memory_mib=256)
    await bench.run(
        a_program(ALL_TERMINALS + "os.fork() or (os.setsid(), os.execvp('sleep', ['sleep', '60']))", environment=other)
    )
    (count,) = await printed(bench, ALL_TERMINALS, kept)
    assert 16 <= int(count) <= 64
    await bench.destroy(other.id)


@needs("script", "tmux")
async def test_terminal_programs_work_across_actions(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await shell(bench, "script -qec 'tty; echo inside' /dev/null", kept)
    assert report.stdout.data.split() == [b"/dev/pts/0", b"inside"], report
    assert (
        await shell(bench, "tmux new-session -d -s a 'echo begun; read x; echo $((x * 7)); sleep 60'", kept)
    ).exit_code == 0
    look = "tmux send-keys -t a 6 Enter; until tmux capture-pane -p -t a | grep -q '^42'; do :; done; echo seen"
    assert (await shell(bench, look, kept)).stdout.data == b"seen\n"


async def test_network_interfaces_can_be_listed(bench: Bench, kept: EnvironmentSpec) -> None:
    assert await printed(bench, INTERFACES, kept) == ["[(1, 'lo')] 0", "True", "True"]


async def test_sparse_file_may_be_larger_than_the_disk(bench: Bench, kept: EnvironmentSpec) -> None:
    assert await printed(bench, SPARSE, kept) == [f"{1 << 34} True"]
    full = await shell(bench, "cat /dev/zero >big; echo $?; ulimit -f", kept)
    assert (full.stdout.data, b"No space left" in full.stderr.data) == (b"1\nunlimited\n", True), full


async def test_user_and_group_have_names_and_a_home(bench: Bench, kept: EnvironmentSpec) -> None:
    assert await printed(bench, ACCOUNTS, kept) == ["sandbox True sandbox", "True 0"]


async def test_var_tmp_is_writable_and_counts_as_disk(bench: Bench, kept: EnvironmentSpec) -> None:
    assert (await shell(bench, "mktemp -p /var/tmp; stat -c %a /var/tmp", kept)).stdout.data.endswith(b"\n1777\n")
    report = await shell(bench, "cat /dev/zero >/var/tmp/big", kept)
    assert (report.outcome, report.reason) == ("limit_exceeded", "disk")


async def test_mnt_is_writable_and_counts_as_disk(bench: Bench, kept: EnvironmentSpec) -> None:
    assert (await shell(bench, "echo kept >/mnt/a; cat /mnt/a", kept)).stdout.data == b"kept\n"
    report = await shell(bench, "cat /dev/zero >/mnt/big", kept)
    assert (report.outcome, report.reason) == ("limit_exceeded", "disk")


async def test_number_of_files_grows_with_the_disk(bench: Bench) -> None:
    if bench.enforcement["memory"] != "enforced":
        pytest.skip("without a cgroup the memory limits the number of files")
    large = an_environment(memory_mib=512, disk_mib=1024, scope="ephemeral")
    (count,) = await printed(bench, "import os; print(os.statvfs('.').f_files)", large)
    assert int(count) >= 250_000


@needs("strace")
async def test_strace_follows_a_program(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await shell(bench, "strace -f -e trace=execve sh -c 'true; /bin/true' 2>&1 | grep -c execve", kept)
    assert int(report.stdout.data) >= 2, report


@pytest.mark.slow
@needs("gcc", "gdb")
async def test_gdb_shows_where_a_program_crashed(bench: Bench, kept: EnvironmentSpec) -> None:
    text = "echo 'int main() { int *p = 0; *p = 1; }' >a.c; gcc -g a.c; gdb -batch -ex run -ex bt ./a.out 2>&1"
    report = await shell(bench, text, kept)
    assert b"in main () at a.c:1" in report.stdout.data, report


@pytest.mark.slow
@needs("g++")
async def test_leak_sanitizer_accepts_right_programs_and_finds_leaks(bench: Bench, kept: EnvironmentSpec) -> None:
    build = "g++ -g -fsanitize=address"
    right = await shell(bench, f"echo '{ASAN_RIGHT}' >a.cpp; {build} a.cpp && ./a.out", kept)
    assert (right.outcome, right.stderr.data) == ("ok", b""), right
    leaking = await shell(bench, f"echo '{ASAN_LEAK}' >b.cpp; {build} b.cpp && ./a.out", kept)
    assert leaking.exit_code == 1
    assert b"detected memory leaks" in leaking.stderr.data, leaking
