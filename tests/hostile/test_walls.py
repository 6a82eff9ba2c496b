"""What an action may not see, touch or reach."""

import json
import os
import secrets
import socket
from pathlib import Path

import pytest

from arl_cpu.executor import EnvironmentSpec
from support.sandbox import Bench, a_command, a_program, an_environment

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
    """Run named attempts inside; those that did not raise."""
    source = f"{REFUSED}\nsurvivors({attempts})"
    report = await sandbox.run(a_program(source, environment=environment or an_environment(scope="ephemeral")))
    assert report.outcome == "ok", report
    worked: list[str] = json.loads(report.stdout.kept)
    return worked


class TestFiles:
    async def test_no_file_of_the_host_can_be_read(self, sandbox: Bench, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("outside")
        secret.chmod(0o644)
        for path in (secret, "/etc/shadow", "/etc/ssh", "/home", "/var", "/run", "/sys", "/root/.ssh", Path(__file__)):
            assert (await sandbox.run(a_command("ls", str(path)))).outcome == "user_error", path

    async def test_nothing_of_the_system_can_be_written(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            usr=lambda: open("/usr/x", "w"), etc=lambda: open("/etc/x", "w"), root=lambda: open("/x", "w"),
            dev=lambda: open("/dev/x", "w"), passwd=lambda: open("/etc/passwd", "a"),
            python=lambda: open(os.__file__, "a"), node=lambda: os.mknod("/workspace/n", 0o20666, os.makedev(1, 1)),
            """,
        )
        assert worked == []

    async def test_no_sysctl_can_be_written(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            core=lambda: open("/proc/sys/kernel/core_pattern", "w"), swap=lambda: open("/proc/sys/vm/swappiness", "w"),
            name=lambda: open("/proc/sys/kernel/hostname", "w"),
            domain=lambda: open("/proc/sys/kernel/domainname", "w"),
            """,
        )
        assert worked == []

    async def test_another_environment_s_files_are_not_there(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        marker = secrets.token_hex(8)
        await sandbox.run(
            a_command("sh", "-c", f"echo {marker} | tee mine /tmp/mine /dev/shm/mine", environment=trajectory)
        )
        found = await sandbox.run(a_command("sh", "-c", f"grep -rs {marker} /workspace /tmp /dev/shm"))
        assert (found.outcome, found.stdout.total_bytes) == ("user_error", 0)

    async def test_a_link_cannot_make_the_agent_read_or_write_outside_the_workspace(self, sandbox: Bench) -> None:
        environment = an_environment()
        links = "ln -s /proc/self/environ e; ln -s /etc/passwd p; ln -s /proc/1/environ o"
        await sandbox.run(a_command("sh", "-c", links, environment=environment))
        report = await sandbox.run(a_command("true", environment=environment, fetch=("e", "p", "o")))
        assert report.missing_files == ("e", "p", "o")
        written = await sandbox.run(a_command("true", environment=environment, files={"p": b"root::0:0::/:/bin/sh"}))
        assert written.outcome == "user_error"
        await sandbox.destroy(environment.id)

    async def test_a_device_or_pipe_in_place_of_a_fetched_file_is_missing(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", "mkfifo pipe; mkdir dir", fetch=("pipe", "dir")))
        assert (report.outcome, report.missing_files) == ("ok", ("pipe", "dir"))


class TestNetwork:
    async def test_nothing_listens_for_an_action_and_no_address_can_be_reached(self, sandbox: Bench) -> None:
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

    async def test_only_unix_and_ip_sockets_exist(self, sandbox: Bench) -> None:
        worked = await what_worked(
            sandbox,
            """
            netlink=lambda: socket.socket(16, socket.SOCK_RAW), packet=lambda: socket.socket(17, socket.SOCK_RAW),
            vsock=lambda: socket.socket(40, socket.SOCK_STREAM), alg=lambda: socket.socket(38, socket.SOCK_SEQPACKET),
            raw=lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
            unix=lambda: socket.socket(socket.AF_UNIX), tcp=lambda: socket.socket(),
            """,
        )
        assert worked == ["unix", "tcp"]

    async def test_an_environment_has_a_loopback_of_its_own(self, sandbox: Bench) -> None:
        source = (
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname(), 1)"
        )
        assert (await sandbox.run(a_program(source))).outcome == "ok"


class TestKernel:
    async def test_calls_that_leave_the_sandbox_are_refused(self, sandbox: Bench) -> None:
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
        assert worked == []

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
    async def test_calls_that_widen_the_kernel_s_surface_are_refused(self, sandbox: Bench) -> None:
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
    async def test_a_call_of_another_architecture_is_killed(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_program("import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"))
        assert (report.outcome, report.signal) == ("user_error", 31)

    async def test_an_action_has_no_capability_and_can_get_none(self, sandbox: Bench) -> None:
        report = await sandbox.run(
            a_command("grep", "-E", "^(Cap|NoNewPrivs|Seccomp:|Uid|Groups)", "/proc/self/status")
        )
        lines = dict(line.split(":\t", 1) for line in report.stdout.kept.decode().splitlines())
        assert {int(lines[name], 16) for name in lines if name.startswith("Cap")} == {0}
        assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")
        assert lines["Uid"].split() == ["1000"] * 4

    async def test_no_environment_runs_under_host_root(self, sandbox: Bench, trajectory: EnvironmentSpec) -> None:
        report = await sandbox.run(a_command("cat", "/proc/self/uid_map", environment=trajectory))
        _, outside, count = map(int, report.stdout.kept.split())
        assert (outside != 0, count) == (True, 1)
        if sandbox.enforcement["uid_separation"] == "enforced":
            other = await sandbox.run(a_command("cat", "/proc/self/uid_map"))
            assert int(other.stdout.kept.split()[1]) != outside


class TestOtherProcesses:
    async def test_the_names_of_cgroups_are_not_shown(self, sandbox: Bench) -> None:
        assert b"tangram" not in (await sandbox.run(a_command("cat", "/proc/self/cgroup"))).stdout.kept

    async def test_only_the_environment_s_own_processes_exist(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", COUNT))
        assert int(report.stdout.kept) <= 4  # the agent, sh, ls, wc

    async def test_the_agent_cannot_be_killed_stopped_or_read(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        attempts = """
            **{name: lambda name=name: open(f"/proc/1/{name}", "rb").read(1) for name in ("environ", "mem", "maps")},
            fds=lambda: os.listdir("/proc/1/fd"), ptrace=lambda: call(101, 16, 1, 0, 0),
            cwd=lambda: os.readlink("/proc/1/cwd"), memory=lambda: call(310, 1, 0, 0, 0, 0, 0),
        """
        assert await what_worked(sandbox, attempts, trajectory) == []
        source = "import os\nfor number in range(1, 65):\n    try: os.kill(1, number)\n    except OSError: pass"
        assert (await sandbox.run(a_program(source, environment=trajectory))).outcome == "ok"
        assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"

    async def test_an_interrupt_ends_a_command_as_it_does_outside(self, sandbox: Bench) -> None:
        report = await sandbox.run(a_command("sh", "-c", "kill -INT $$; sleep 5"))
        assert (report.outcome, report.signal) == ("user_error", 2)

    async def test_variables_of_the_launcher_are_not_shown(
        self, sandbox: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        report = await sandbox.run(a_program("print(open('/proc/self/environ').read(), __import__('os').environ)"))
        assert b"SECRET" not in report.stdout.kept.upper()
        command = await sandbox.run(a_command("env"))
        names = {line.split(b"=")[0].decode() for line in command.stdout.kept.splitlines()}
        assert names - {"PWD"} == {
            "PATH", "HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
            "NUMEXPR_NUM_THREADS", "PYTHON_CPU_COUNT",
        }  # fmt: skip

    async def test_source_does_not_inherit_what_other_actions_did(
        self, sandbox: Bench, trajectory: EnvironmentSpec
    ) -> None:
        marker = secrets.token_hex(16)
        await sandbox.run(a_program(f"print({marker!r})", environment=trajectory, stdin=marker.encode()))
        search = f"""
import gc
half = {marker[:16]!r}
print(sum(half + {marker[16:]!r} in repr(each)[:4096] for each in gc.get_objects() if each is not globals()))
"""
        assert (await sandbox.run(a_program(search))).stdout.kept.strip() == b"0"

    async def test_open_files_are_the_three_standard_ones(self, sandbox: Bench) -> None:
        source = "import os\nprint(sorted(os.listdir('/proc/self/fd')))"
        assert (await sandbox.run(a_program(source))).stdout.kept == b"['0', '1', '2', '3']\n"  # 3 is the listing


def socket_of(sandbox: Bench) -> Path:
    assert sandbox.launcher is not None
    return sandbox.launcher.socket
