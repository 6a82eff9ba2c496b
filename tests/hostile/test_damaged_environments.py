"""Test that an environment stays usable after a program has damaged it."""

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecutionReport
from support.sandbox import Bench, a_command, a_program, a_session_command, an_environment

REFORK = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
while True:
    try:
        if os.fork() == 0: time.sleep(600)
    except OSError: pass
"""


async def shell(sandbox: Bench, text: str, environment: EnvironmentSpec, **changes: object) -> ExecutionReport:
    return await sandbox.run(a_command("sh", "-c", text, environment=environment, **changes))


async def change_mode(sandbox: Bench, change: str, environment: EnvironmentSpec) -> None:
    """Skip the test if the driver refuses the change."""
    report = await shell(sandbox, f"chmod {change}", environment)
    if report.outcome != "ok":
        assert b"Operation not permitted" in report.stderr.data
        pytest.skip("this driver lets no program of an ordinary user change the modes of paths")


def skip_for_root(sandbox: Bench) -> None:
    if sandbox.user == "root":
        pytest.skip("modes do not restrict root inside")


async def test_closed_working_directory_is_opened_again_with_a_message(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    skip_for_root(sandbox)
    await shell(sandbox, "echo kept >file", trajectory)
    await change_mode(sandbox, "000 .", trajectory)
    report = await shell(sandbox, "cat file in", trajectory, files={"in": b"uploaded\n"})
    assert (report.outcome, report.stdout.data) == ("ok", b"kept\nuploaded\n"), report
    assert "could not be entered" in str(report.message)
    assert (await shell(sandbox, "true", trajectory)).message is None


async def test_read_only_working_directory_stays_as_the_program_left_it(
    sandbox: Bench, trajectory: EnvironmentSpec
) -> None:
    skip_for_root(sandbox)
    await change_mode(sandbox, "555 .", trajectory)
    report = await sandbox.run(a_program("import os; print(os.access('.', os.W_OK))", environment=trajectory))
    assert (report.outcome, report.stdout.data, report.message) == ("ok", b"False\n", None)
    await shell(sandbox, "chmod 755 .", trajectory)


@pytest.mark.parametrize(
    "damage",
    ["rm -r $OLDPWD", "mv $OLDPWD moved", "mv $OLDPWD moved; echo x >$OLDPWD", "mv $OLDPWD m; ln -s no $OLDPWD"],
)
async def test_missing_working_directory_is_created_again_with_a_message(
    sandbox: Bench, trajectory: EnvironmentSpec, damage: str
) -> None:
    if sandbox.state.driver != "landlock":
        pytest.skip("it is a mount point of `host`, which nobody can remove; images have a test of their own")
    await shell(sandbox, f"cd ..; {damage}", trajectory)
    report = await shell(sandbox, "cat in", trajectory, files={"in": b"uploaded"}, fetch=("in",))
    assert (report.outcome, report.stdout.data, report.files) == ("ok", b"uploaded", {"in": b"uploaded"}), report
    assert "created again" in str(report.message)
    assert (await sandbox.run(a_program("print(1)", environment=trajectory))).message is None


async def test_directory_that_cannot_be_entered_is_refused_by_name(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    skip_for_root(sandbox)
    await shell(sandbox, "mkdir below", trajectory)
    await change_mode(sandbox, "600 below", trajectory)
    report = await shell(sandbox, "true", trajectory, cwd="below")
    assert report.outcome == "user_error"
    assert "cannot be entered: Permission denied" in str(report.message)


@pytest.mark.parametrize("way", ["command", "source", "session"])
async def test_processes_that_fill_the_limit_are_ended_for_the_next_action(sandbox: Bench, way: str) -> None:
    if sandbox.state.driver == "landlock" and sandbox.enforcement.get("pids") != "enforced":
        pytest.skip("the agent counts processes here, and a crowd that grows during an action ends that action")
    full = an_environment(pids=12)
    await sandbox.run(a_command("python3", "-c", REFORK, environment=full))
    report = await {
        "command": lambda: shell(sandbox, "echo done", full),
        "source": lambda: sandbox.run(a_program("print('done')", environment=full)),
        "session": lambda: sandbox.run(a_session_command("main", "echo done", environment=full)),
    }[way]()
    assert (report.outcome, report.stdout.data) == ("ok", b"done\n"), report
    for _ in range(20):  # the crowd may need a few actions to fill the last place
        if "were ended" in str(report.message):
            break
        report = await shell(sandbox, "echo done", full)
        assert (report.outcome, report.stdout.data) == ("ok", b"done\n"), report
    assert "were ended" in str(report.message)
    assert (await shell(sandbox, "true; true | true", full)).outcome == "ok"
    await sandbox.destroy(full.id)


async def test_names_of_unfinished_uploads_cannot_be_blocked(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    block = "mkdir -p .tangram-unfinished/x .tangram-unfinished-0/x; mkfifo .tangram-unfinished-1"
    await shell(sandbox, block, trajectory)
    report = await shell(sandbox, "cat in; ls -A | wc -l", trajectory, files={"in": b"uploaded\n"})
    assert report.stdout.data.split() == [b"uploaded", b"4"], report


async def test_files_that_fill_the_memory_can_be_deleted(sandbox: Bench) -> None:
    full = an_environment(memory_mib=64, disk_mib=256)
    for name in ("one", "two", "three"):
        report = await sandbox.run(a_command("dd", "if=/dev/zero", f"of={name}", "bs=4k", environment=full))
        assert (report.outcome, report.environment_lost) == ("limit_exceeded", False), report
    report = await sandbox.run(a_command("rm", "one", environment=full))
    assert report.outcome == "ok", report
    report = await sandbox.run(a_program("import os; os.unlink('two'); print(os.listdir('.'))", environment=full))
    assert report.outcome == "ok", report
    await sandbox.destroy(full.id)
