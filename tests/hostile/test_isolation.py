"""Test that an action cannot see, change or reach anything outside its environment."""

import json
import os
import secrets
import signal
import socket
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from support.sandbox import Bench, a_command, a_program, agent_of, an_environment

REFUSED = """
import ctypes, json, os, socket, sys

libc = ctypes.CDLL(None, use_errno=True)

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")

def call(number, *arguments):
    check(libc.syscall(number, *arguments))

def survivors(**attempts):
    left = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        left.append(name)
    print(json.dumps(left))
"""

COUNT = "ls -d /proc/[0-9]* | wc -l"


async def what_worked(sandbox: Bench, attempts: str, environment: EnvironmentSpec | None = None) -> list[str]:
    """Run named attempts in the sandbox and return those that did not raise."""
    source = f"{REFUSED}\nsurvivors({attempts})"
    report = await sandbox.run(a_program(source, environment=environment or an_environment(scope="ephemeral")))
    assert report.outcome == "ok", report.stderr.data
    worked: list[str] = json.loads(report.stdout.data)
    return worked


class TestFiles:
    async def test_action_cannot_read_host_files(self, sandbox: Bench, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("outside")
        secret.chmod(0o644)
        for path in (
            secret,
            "/etc/shadow",
            "/etc/ssh",
            "/root/.ssh",
            "/sys/firmware",
            "/sys/class/dmi",
            "/sys/block",
            Path(__file__),
        ):
            read = '[ -d "$1" ] && ls "$1" || cat "$1"'
            assert (await sandbox.run(a_command("sh", "-c", read, "-", str(path)))).outcome == "user_error", path
            if sandbox.enforcement["files"] == "enforced":
                assert (await sandbox.run(a_command("ls", "-d", str(path)))).outcome == "user_error", path

    async def test_directories_of_the_host_are_empty_or_hidden(self, sandbox: Bench) -> None:
        for path in ("/home", "/opt", "/srv", "/var/lib", "/var/log", "/run/lock", "/mnt"):
            report = await sandbox.run(a_command("ls", "-A", path))
            # The packages of verifiers are readable for all actions.
            assert report.stdout.data in (b"", b"tangram-packages\n"), path

    async def test_action_cannot_write_system_files(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            usr=lambda: open("/usr/x", "w"), etc=lambda: open("/etc/x", "w"), root=lambda: open("/x", "w"),
            dev=lambda: open("/dev/x", "w"), passwd=lambda: open("/etc/passwd", "a"),
            python=lambda: open(os.__file__, "a"),
            node=lambda: os.mknod(os.environ["HOME"] + "/n", 0o20666, os.makedev(1, 1)),
            """,
        )
        assert worked == []

    async def test_action_cannot_write_sysctls(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            core=lambda: open("/proc/sys/kernel/core_pattern", "w"), swap=lambda: open("/proc/sys/vm/swappiness", "w"),
            name=lambda: open("/proc/sys/kernel/hostname", "w"),
            domain=lambda: open("/proc/sys/kernel/domainname", "w"),
            """,
        )
        assert worked == []

    async def test_action_cannot_reach_files_of_another_environment(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        marker = secrets.token_hex(8)
        await sandbox.run(
            a_command("sh", "-c", f"echo {marker} | tee mine $TMPDIR/mine /dev/shm/mine", environment=trajectory)
        )
        found = await sandbox.run(a_command("sh", "-c", f"grep -rs {marker} $HOME $TMPDIR /tmp /dev/shm"))
        assert (found.outcome, found.stdout.total_bytes) == ("user_error", 0)
        place = (await sandbox.run(a_command("pwd", environment=trajectory))).stdout.data.decode().strip()
        for attempt in (f"cat {place}/mine", f"ls {place}/..", f"echo > {place}/mine"):
            if sandbox.enforcement["files"] != "enforced":  # else both have the same name for their own
                assert (await sandbox.run(a_command("sh", "-c", attempt))).outcome == "user_error"
        assert (
            await sandbox.run(a_command("cat", "mine", environment=trajectory))
        ).stdout.data == f"{marker}\n".encode()

    async def test_symlink_does_not_redirect_the_agent_outside_the_workspace(self, sandbox: Bench) -> None:
        environment = an_environment()
        links = "ln -s /proc/self/environ e; ln -s /etc/passwd p; ln -s /proc/1/environ o"
        await sandbox.run(a_command("sh", "-c", links, environment=environment))
        report = await sandbox.run(a_command("true", environment=environment, fetch=("e", "p", "o")))
        assert report.missing_files == ("e", "p", "o")
        written = await sandbox.run(a_command("true", environment=environment, files={"p": b"root::0:0::/:/bin/sh"}))
        assert written.outcome == "user_error"
        await sandbox.destroy(environment.id)

    async def test_pipe_or_directory_is_reported_as_a_missing_file(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", "mkfifo pipe; mkdir dir", fetch=("pipe", "dir")))
        assert (report.outcome, report.missing_files) == ("ok", ("pipe", "dir"))


class TestNetwork:
    async def test_action_cannot_connect_to_any_address_or_socket(self, sandbox: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as service, socket.socket(socket.AF_UNIX) as abstract:
            name = f"tangram-{secrets.token_hex(4)}"
            abstract.bind(f"\0{name}")
            abstract.listen()
            worked = await what_worked(
                sandbox,
                f"""
                service=lambda: socket.create_connection(("127.0.0.1", {service.getsockname()[1]}), 1),
                postgres=lambda: socket.create_connection(("127.0.0.1", 5432), 1),
                metadata=lambda: socket.create_connection(("169.254.169.254", 80), 1),
                public=lambda: socket.create_connection(("192.0.2.1", 443), 1),
                abstract=lambda: socket.socket(socket.AF_UNIX).connect("\\0{name}"),
                launcher=lambda: socket.socket(socket.AF_UNIX).connect({str(socket_of(sandbox))!r}),
                """,
            )
        assert worked == []

    async def test_action_cannot_change_host_files_by_path(self, sandbox: Bench, tmp_path: Path) -> None:
        """Landlock does not restrict changes of modes, times and owners."""
        mine = tmp_path / "mine"
        mine.write_text("x")
        mine.chmod(0o640)
        worked = await what_worked(
            sandbox,
            f"""
            mode=lambda: os.chmod({str(mine)!r}, 0o666), times=lambda: os.utime({str(mine)!r}, (0, 0)),
            owner=lambda: os.chown({str(mine)!r}, -1, os.getgid()), cut=lambda: os.truncate({str(mine)!r}, 0),
            xattr=lambda: os.setxattr({str(mine)!r}, "user.x", b""), link=lambda: os.link({str(mine)!r}, "l"),
            move=lambda: os.rename({str(mine)!r}, "m"), unlink=lambda: os.unlink({str(mine)!r}),
            """,
        )
        assert (worked, mine.read_text(), mine.stat().st_mode & 0o777) == ([], "x", 0o640)

    async def test_only_unix_tcp_and_route_netlink_sockets_can_be_created(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            netlink=lambda: socket.socket(16, socket.SOCK_RAW, 15), packet=lambda: socket.socket(17, socket.SOCK_RAW),
            vsock=lambda: socket.socket(40, socket.SOCK_STREAM), alg=lambda: socket.socket(38, socket.SOCK_SEQPACKET),
            raw=lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
            unix=lambda: socket.socket(socket.AF_UNIX), tcp=lambda: socket.socket(),
            route=lambda: socket.socket(16, socket.SOCK_RAW),
            """,
        )
        assert worked == (["unix", "tcp", "route"] if has_own_network(sandbox) else [])

    async def test_socket_pair_cannot_be_redirected_to_another_address(self, sandbox: Bench) -> None:
        """A datagram socket could be redirected to any abstract name of the host."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
            name = f"tangram-{secrets.token_hex(4)}"
            abstract.bind(f"\0{name}")
            worked = await what_worked(
                sandbox,
                f"""
                sends=lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", "\\0{name}"),
                connects=lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].connect("\\0{name}"),
                again=lambda: socket.socketpair()[0].connect("\\0{name}"),
                """,
            )
        assert worked == []
        source = "import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))"
        assert (await sandbox.run(a_program(source))).outcome == "ok"

    async def test_environment_has_its_own_loopback_interface(self, sandbox: Bench) -> None:
        source = (
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname(), 1)"
        )
        report = await sandbox.run(a_program(source))
        assert report.outcome == ("ok" if has_own_network(sandbox) else "user_error")


class TestKernel:
    async def test_system_calls_that_leave_the_sandbox_are_refused(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            unshare=lambda: check(libc.unshare(0x10000000)), chroot=lambda: os.chroot("/tmp"),
            mount=lambda: check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, 0)),
            umount=lambda: check(libc.umount(b"/tmp")),
            ptrace=lambda: check(libc.ptrace(16, 1, 0, 0)), hostname=lambda: socket.sethostname("x"),
            setuid=lambda: os.setuid(0), setgroups=lambda: os.setgroups([0]), nice=lambda: os.nice(-5),
            realtime=lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
            clock=lambda: __import__("time").clock_settime(0, 0), priority=lambda: os.setpriority(0, 0, -5),
            """,
        )
        assert worked == (["chroot", "setuid", "setgroups"] if sandbox.user == "root" else [])

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
    async def test_risky_kernel_system_calls_are_refused(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            clone=lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0), clone3=lambda: call(435, 0, 0),
            setns=lambda: call(308, 0, 0), keyctl=lambda: call(250, 0, -3, 0), bpf=lambda: call(321, 0, 0, 0),
            uring=lambda: call(425, 1, ctypes.create_string_buffer(120)), userfault=lambda: call(323, 0),
            perf=lambda: call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0),
            handle=lambda: call(304, -100, 0, 0),
            module=lambda: call(313, 0, b"", 0), kexec=lambda: call(246, 0, 0, 0, 0),
            fsopen=lambda: call(430, b"tmpfs", 0),
            open_tree=lambda: call(428, -100, b"/", 1), mount_setattr=lambda: call(442, -100, b"/", 0, b"", 32),
            """,
        )
        assert worked == []

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is a matter of x86-64")
    async def test_system_call_of_another_architecture_is_killed(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_program("import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"))
        assert (report.outcome, report.signal) == ("user_error", 31)

    async def test_action_has_no_capabilities_and_cannot_gain_any(self, sandbox: Bench) -> None:
        if sandbox.user == "root":
            pytest.skip("root inside has capabilities, which the tests of users list")
        source = """
import ctypes, os, struct
prctl, sets = ctypes.CDLL(None).prctl, ctypes.create_string_buffer(24)
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
assert ctypes.CDLL(None).capget(header, sets) == 0
print(sum(sets.raw), sum(prctl(23, each, 0, 0, 0) > 0 for each in range(64)), prctl(39, 0, 0, 0, 0),
    prctl(21, 0, 0, 0, 0), *os.getresuid(), *os.getresgid(), os.getgroups())
"""
        report = await sandbox.run(a_program(source))
        held, may_gain, *rest, groups = report.stdout.data.decode().split()
        assert (held, rest[:2]) == ("0", ["1", "2"])
        assert len(set(rest[2:])) <= 2  # one uid, one gid
        if sandbox.enforcement["uid_separation"] == "enforced" or has_own_network(sandbox):
            bounds = "11" if sandbox.enforcement["users"] == "enforced" else "0"  # those of root inside
            assert (may_gain, groups) == (bounds, "[]") or not has_own_network(sandbox)
        if has_own_network(sandbox):
            assert set(rest[2:]) == {"1000"}
        else:
            assert "0" not in rest[2:]

    async def test_environment_never_runs_as_host_root(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        async def host_uid(environment: EnvironmentSpec) -> int:
            await sandbox.run(a_command("true", environment=environment))
            assert sandbox.launcher is not None
            agent = agent_of(sandbox.launcher)
            status = Path(f"/proc/{agent}/status").read_text()
            (uids,) = {line.split(maxsplit=1)[1] for line in status.splitlines() if line.startswith("Uid:")}
            (uid,) = set(uids.split())
            return int(uid)

        outside = await host_uid(trajectory)
        assert outside != 0
        if sandbox.enforcement["uid_separation"] == "enforced":
            other = an_environment()
            assert await host_uid(other) not in (outside, os.geteuid())
            await sandbox.destroy(other.id)


class TestOtherProcesses:
    async def test_cgroup_names_are_hidden(self, sandbox: Bench) -> None:
        assert b"tangram" not in (await sandbox.run(a_command("cat", "/proc/self/cgroup"))).stdout.data

    async def test_action_sees_only_processes_of_its_environment(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", COUNT))
        assert int(report.stdout.data) <= 4  # the agent, sh, ls, wc

    async def test_action_cannot_kill_stop_or_read_the_agent(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        attempts = """
            **{name: lambda name=name: open(f"/proc/{os.getppid()}/{name}", "rb").read(1)
               for name in ("environ", "mem", "maps")},
            fds=lambda: os.listdir(f"/proc/{os.getppid()}/fd"), ptrace=lambda: call(101, 16, os.getppid(), 0, 0),
            cwd=lambda: os.readlink(f"/proc/{os.getppid()}/cwd"),
            memory=lambda: call(310, os.getppid(), *((ctypes.c_size_t * 2)(1 << 20, 1), 1) * 2, 0),
        """
        assert await what_worked(sandbox, attempts, trajectory) == []
        source = """
import ctypes, fcntl, os, signal
agent, call = os.getppid(), ctypes.CDLL(None).syscall
for number in range(1, 65):
    for target in (agent, -agent, *((-1,) if number != 9 else ())):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
        try:
            os.kill(target, number)
        except OSError:
            pass
    call(200, agent, number)
    call(234, agent, agent, number)
    call(424, call(434, agent, 0), number, 0, 0)
read, write = os.pipe()
try:
    fcntl.fcntl(read, 10, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETOWN, agent)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
    os.write(write, b"x")
except OSError:
    pass
"""
        report = await sandbox.run(a_program(source, environment=trajectory))
        assert (report.environment_lost, report.signal) in ((False, None), (False, signal.SIGSTOP)), report
        assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"

    async def test_action_cannot_change_limits_or_priority_of_the_agent(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        """Otherwise an action could turn its own failure into an infrastructure error."""
        agent = "os.getppid()" if sandbox.enforcement["driver"] == "landlock" else "1"
        attempts = """
            **{name: lambda act=act: act(AGENT) for name, act in {
                "files": lambda pid: __import__("resource").prlimit(pid, 7, (0, 0)),
                "memory": lambda pid: __import__("resource").prlimit(pid, 9, (0, 0)),
                "nice": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
                "group": lambda pid: os.setpriority(os.PRIO_PGRP, pid, 19),
                "idle": lambda pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
                "cores": lambda pid: os.sched_setaffinity(pid, {0}),
                "disk": lambda pid: call(251, 1, pid, 3 << 13),
            }.items()},
            user=lambda: os.setpriority(os.PRIO_USER, 0, 15), disk_user=lambda: call(251, 3, os.getuid(), 3 << 13),
        """.replace("AGENT", agent)
        assert await what_worked(sandbox, attempts, trajectory) == []
        own = "import os, resource; os.nice(1); resource.setrlimit(7, (64, 64)); resource.prlimit(0, 0, (9, 9))"
        assert (await sandbox.run(a_program(own, environment=trajectory))).outcome == "ok"
        assert (await sandbox.run(a_command("false", environment=trajectory))).outcome == "user_error"

    async def test_interrupt_ends_a_command_with_signal_2(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", "kill -INT $$; sleep 5"))
        assert (report.outcome, report.signal) == ("user_error", 2)

    async def test_launcher_variables_are_hidden_from_actions(
        self, sandbox: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = await sandbox.run(a_program("print(open('/proc/self/environ').read(), __import__('os').environ)"))
        assert b"SECRET" not in report.stdout.data.upper()
        command = await sandbox.run(a_command("env"))
        names = {line.split(b"=")[0].decode() for line in command.stdout.data.splitlines()}
        assert names - {"PWD"} == {
            "PATH", "HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
            "NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT",
        }  # fmt: skip

    async def test_source_finds_no_data_of_other_actions_in_memory(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        marker = secrets.token_hex(16)
        await sandbox.run(a_program(f"print({marker!r})", environment=trajectory, stdin=marker.encode()))
        search = f"""
import gc
half = {marker[:16]!r}
print(sum(half + {marker[16:]!r} in repr(each)[:4096] for each in gc.get_objects() if each is not globals()))
"""
        assert (await sandbox.run(a_program(search))).stdout.data.strip() == b"0"

    async def test_action_starts_with_only_three_open_files(self, sandbox: Bench) -> None:
        source = """
import os
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
print([number for number in range(4096) if is_open(number)])
"""
        assert (await sandbox.run(a_program(source))).stdout.data == b"[0, 1, 2]\n"


def has_own_network(sandbox: Bench) -> bool:
    """Return True if the driver gives each environment its own network namespace."""
    (network,) = (each for each in sandbox.state.capabilities if each.name == "net_isolation")
    return network.mechanism == "network namespace"


def socket_of(sandbox: Bench) -> Path:
    assert sandbox.launcher is not None
    return sandbox.launcher.socket
