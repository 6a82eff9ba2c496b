"""Test file operations on environments with hostile contents, under every driver."""

import asyncio
import io
import os
import tarfile
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from arl_cpu.contract.environment_access import FileOperation, FileOperationError
from arl_cpu.contract.executor import EnvironmentSpec
from support.conditions import eventually
from support.sandbox import Bench, a_command, a_program, an_environment, cgroups_of, children_of, living_descendants
from support.work import begun, moved


async def packed(sandbox: Bench, environment: EnvironmentSpec, path: str = "") -> dict[str, tarfile.TarInfo]:
    work = await begun(sandbox, environment, "pack", path=path)
    try:
        await work.read_response()
        content = b"".join([chunk async for chunk in work.output()])
    finally:
        await work.close()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name: member for member in archive}


async def unpacked(sandbox: Bench, environment: EnvironmentSpec, content: bytes) -> Mapping[str, Any]:
    work = await begun(sandbox, environment, "unpack")
    try:
        await work.read_response()
        feeding = asyncio.create_task(fed(work, content))
        answer = await work.read_response()
        await feeding
        return answer
    finally:
        await work.close()


async def fed(work: FileOperation, content: bytes) -> None:
    """Send the archive; ignore a connection that closes early because the archive was refused."""
    with suppress(ConnectionError):
        await work.send(content)
        await work.send(b"")


def an_archive(**files: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o6777
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


async def test_unpacked_files_belong_to_the_environment_user(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("true", environment=trajectory))
    assert await unpacked(sandbox, trajectory, an_archive(a=b"one", b=b"two")) == {"members": 2, "bytes": 6}
    report = await sandbox.run(a_command("sh", "-c", "stat -c %a a; echo more >> a; cat a b", environment=trajectory))
    assert (report.outcome, report.stdout.data) == ("ok", b"777\nonemore\ntwo")
    assert sorted(await packed(sandbox, trajectory)) == ["a", "b"]


async def test_leftover_processes_stay_frozen_during_file_operations(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    script = "(while :; do echo x >> ticks; sleep 0.001; done) >/dev/null 2>&1 & sleep 0.1"
    report = await sandbox.run(a_command("sh", "-c", script, environment=trajectory))
    assert report.leftover_processes
    sizes = [(await packed(sandbox, trajectory))["ticks"].size for _ in range(3)]
    await unpacked(sandbox, trajectory, an_archive(a=b"1" * (1 << 20)))
    sizes.append((await packed(sandbox, trajectory))["ticks"].size)
    assert len(set(sizes)) == 1


async def test_file_operation_on_a_busy_environment_is_refused(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    running = a_command("sleep", "30", environment=trajectory)
    report = await sandbox.begin(running)
    work = await begun(sandbox, trajectory, "pack")
    with pytest.raises(FileOperationError, match="another operation or action is running"):
        await work.read_response()
    await work.close()
    await sandbox.executor.kill([running.fence])
    await report


async def test_action_waits_until_an_aborted_file_operation_ends(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    """The file operation belongs to a lost manager and is being aborted."""
    await sandbox.run(a_command("true", environment=trajectory))
    work = await begun(sandbox, trajectory, "unpack")
    await work.read_response()
    report = await sandbox.begin(a_command("ls", "-A", environment=trajectory))
    await work.close()
    assert (await report).stdout.data == b""


async def test_workspace_replaced_by_a_symlink_exposes_no_host_file(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    """If the workspace is in the host's tree, an action can redirect its name anywhere."""
    program = "import os; w = os.getcwd(); os.chdir('/'); os.rename(w, w + '2'); os.symlink('/etc', w)"
    report = await sandbox.run(a_program(program, environment=trajectory))
    if report.outcome == "ok":
        with pytest.raises(FileOperationError):
            await packed(sandbox, trajectory)
    else:
        assert await packed(sandbox, trajectory) == {}


async def test_file_operations_do_not_follow_symlinks(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    script = "ln -s / root; ln -s /proc/self/root self; ln -s ../../../../.. up; mkfifo pipe"
    await sandbox.run(a_command("sh", "-c", script, environment=trajectory))
    for path in ("root/etc/passwd", "self/etc/passwd", "up/etc/passwd", "root", "up", "pipe/x"):
        with pytest.raises(FileOperationError):
            await packed(sandbox, trajectory, path)
    assert {member.type for member in (await packed(sandbox, trajectory)).values()} == {tarfile.SYMTYPE}


async def test_unpack_above_the_disk_limit_is_refused_and_recoverable(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    await sandbox.run(a_command("sh", "-c", "echo old > f", environment=trajectory))
    with pytest.raises(FileOperationError) as refused:
        await unpacked(sandbox, trajectory, an_archive(e=b"e", f=os.urandom(33 << 20)))
    assert refused.value.code == "disk"
    report = await sandbox.run(a_command("sh", "-c", "cat f; ls -A", environment=trajectory))
    assert report.stdout.data == b"old\ne\nf\n"


async def test_unpacked_files_count_as_memory_of_the_environment(sandbox: Bench) -> None:
    if sandbox.enforcement["memory"] != "enforced" or not Path("/sys/fs/cgroup/memory").exists():
        pytest.skip("only in version 1 can a process join all of a frozen environment's cgroups but the freezer's")
    if sandbox.state.driver == "landlock":
        pytest.skip("its files lie on a disk, and are no memory")
    environment = an_environment(memory_mib=64, disk_mib=256)
    await sandbox.run(a_command("sh", "-c", "sleep 300 & echo old > f", environment=environment))
    await unpacked(sandbox, environment, an_archive(big=bytes(30 << 20)))
    assert sandbox.launcher is not None
    (group,) = (path for path in cgroups_of(sandbox.launcher) if (path / "memory.usage_in_bytes").exists())
    assert int((group / "memory.usage_in_bytes").read_text()) > 30 << 20
    # Files leave some memory to programs.
    with pytest.raises(FileOperationError) as refused:
        await unpacked(sandbox, environment, an_archive(big=bytes(160 << 20)))
    assert refused.value.code == "disk"
    report = await sandbox.run(a_command("sh", "-c", "cat f; ls", environment=environment))
    assert (report.outcome, report.stdout.data.splitlines()[0]) == ("ok", b"old")
    await sandbox.destroy(environment.id)


async def test_destroying_an_environment_aborts_its_file_operation(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("true", environment=trajectory))
    work = await begun(sandbox, trajectory, "unpack")
    await work.read_response()
    await asyncio.wait_for(sandbox.destroy(trajectory.id), 10)
    with pytest.raises(ConnectionError):
        await work.read_response()
    await work.close()


async def test_too_long_list_cursor_is_refused_without_losing_the_environment(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    await sandbox.run(a_command("touch", "f", environment=trajectory))
    for after, refused in (("e" * 60_000, False), ("e" * 300_000, True)):
        work = await begun(sandbox, trajectory, "list", recursive=False, limit=10, after=after)
        with pytest.raises(FileOperationError, match="at most 65536 bytes") if refused else nullcontext():
            assert [entry["path"] for entry in (await work.read_response())["entries"]] == ["f"]
        await work.close()
    assert (await sandbox.run(a_command("true", environment=trajectory))).outcome == "ok"


async def test_file_operation_ends_at_its_time_limit(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("true", environment=trajectory))
    work = await begun(sandbox, trajectory, "unpack", limit_s=1)
    await work.read_response()
    with pytest.raises(FileOperationError) as refused:
        await work.read_response()
    assert refused.value.code == "time"
    await work.close()


async def test_archive_cut_by_the_time_limit_raises_an_error(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("sh", "-c", "head -c 15000000 /dev/urandom > f", environment=trajectory))
    work = await begun(sandbox, trajectory, "pack", limit_s=1)
    await work.read_response()
    await asyncio.sleep(1.5)  # the time of the other process, which nothing but time takes
    with pytest.raises(FileOperationError) as refused:
        [_ async for _ in work.output()]
    assert refused.value.code == "time"
    await work.close()


async def test_unread_archive_does_not_block_the_environment(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("sh", "-c", "head -c 15000000 /dev/urandom > f", environment=trajectory))
    work = await begun(sandbox, trajectory, "pack", limit_s=1)
    await work.read_response()
    report = await sandbox.begin(a_command("true", environment=trajectory))
    assert (await asyncio.wait_for(report, 10)).outcome == "ok"
    with pytest.raises(ConnectionError):
        [_ async for _ in work.output()]
    await work.close()


async def test_file_operations_leave_no_open_file_or_process(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    assert sandbox.launcher is not None
    await sandbox.run(a_command("true", environment=trajectory))
    await packed(sandbox, trajectory)
    children, files = children_of(sandbox.launcher), open_files(sandbox.launcher.pid)
    for number in range(5):
        await packed(sandbox, trajectory)
        work = await begun(sandbox, trajectory, "unpack")
        if number % 2:
            await work.read_response()
        await work.close()
    launcher = sandbox.launcher
    await eventually(lambda: open_files(launcher.pid) == files and children_of(launcher) == children)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_all_files_can_be_moved_to_another_environment(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(
        a_command("sh", "-c", "echo a > a; mkdir -p d/e; ln -s a l; echo t > $TMPDIR/t", environment=trajectory)
    )
    other = an_environment()
    await sandbox.run(a_command("sh", "-c", "echo old > a; mkdir l", environment=other))
    await moved(sandbox, trajectory, other)
    report = await sandbox.run(a_command("sh", "-c", "cat l $TMPDIR/t; find . | sort", environment=other))
    assert report.stdout.data == b"a\nt\n.\n./a\n./d\n./d/e\n./l\n"
    await sandbox.destroy(other.id)


@pytest.mark.parametrize("kind", ["one long header", "many headers"])
async def test_extended_headers_above_the_limit_are_refused(
    sandbox: Bench, trajectory: EnvironmentSpec, kind: str
) -> None:
    """Some versions of `tarfile` need time that is quadratic in the length of such a header."""
    await sandbox.run(a_command("true", environment=trajectory))
    header = tarfile.TarInfo("x")
    record = b"512 comment=".ljust(511, b"x") + b"\n"
    header.type, header.size = tarfile.XHDTYPE, 4 << 20 if kind == "one long header" else len(record)
    content = header.tobuf() + b"1" * header.size if kind == "one long header" else (header.tobuf() + record) * 9
    with pytest.raises(FileOperationError, match="extended headers") as refused:
        await unpacked(sandbox, trajectory, content)
    assert refused.value.code == "invalid"
    report = await sandbox.run(a_command("echo", "alive", environment=trajectory))
    assert report.stdout.data == b"alive\n"


async def test_paths_of_the_largest_length_are_unpacked(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await sandbox.run(a_command("true", environment=trajectory))
    name = "/".join(["d" * 250] * 8) + "/f"
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for at in range(3):
            archive.addfile(tarfile.TarInfo(f"{name}{at}"))
    assert (await unpacked(sandbox, trajectory, target.getvalue()))["members"] == 3


async def test_file_operations_share_one_core_at_the_lowest_priority(sandbox: Bench) -> None:
    """Nobody granted them cores, so actions of other tenants go first."""
    assert sandbox.launcher is not None
    environments = [an_environment(), an_environment()]
    for environment in environments:
        await sandbox.run(a_command("true", environment=environment))
    before = living_descendants(sandbox.launcher.pid)
    working = [await begun(sandbox, environment, "unpack") for environment in environments]
    for work in working:
        await work.read_response()
    workers = living_descendants(sandbox.launcher.pid) - before
    idle = [pid for pid in workers if os.sched_getscheduler(pid) == os.SCHED_IDLE]
    groups = {cpu_group(pid) for pid in idle}
    for work in working:
        await work.close()
    for environment in environments:
        await sandbox.destroy(environment.id)
    assert len(idle) == 2
    assert len(groups) == 1
    if sandbox.enforcement["cpu_quota"] == "enforced":
        assert groups.pop().endswith("/file-workers")


def cpu_group(pid: int) -> str:
    """Return the cgroup that limits the CPU time of a process."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return next(path for _, names, path in lines if "cpu" in names.split(",") or not names)
