"""Test SWE-ReX's runtime protocol over HTTP on real sandboxes. A contract test covers its client."""

import asyncio
import io
import random
import shutil
import signal
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template
from arl_cpu.templates.template_store import TemplateStore
from arl_store.migrate import ensure_api_key
from support.conditions import eventually
from support.images import a_root
from support.postgres import Databases
from support.system import API_KEY, System, running_system

OTHERS_KEY = "tk_" + "o" * 32
PROGRAMS = ("bash", "sh", "env", "cat", "mkdir", "base64", "tar", "gzip", "ls", "find")
SMALL = {"task": "t", "memory_mib": 64, "disk_mib": 8}


@pytest.fixture(scope="module")
def templates() -> Iterator[Path]:
    """Provide a template store with one minimal template for SWE-ReX's routes."""
    directory = Path(tempfile.mkdtemp(prefix="tangram-templates-"))
    directory.chmod(0o755)
    root = a_root(directory / "root", programs=PROGRAMS, files={"root/.bashrc": "FROM=bashrc\n"})
    budget = ImportBudget(max_bytes=1 << 30, max_members=10_000)
    import_template(TemplateStore(directory / "templates"), root, "small", budget=budget)
    yield directory / "templates"
    shutil.rmtree(directory)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases, templates: Path) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "labs/other", OTHERS_KEY)
    overrides = {name: {"TANGRAM_TEMPLATES_DIR": str(templates)} for name in ("launcher", "cpu")}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def rex(system: System) -> AsyncIterator["Rex"]:
    """Provide a runtime in its own trajectory; the first use creates its environment and close ends it."""
    async with system.client() as api:
        rex = Rex(api, f"/t/rex/trajectories/{uuid4()}/options/memory_mib=64,disk_mib=32/swerex")
        yield rex
        await rex.ask("close")


@pytest_asyncio.fixture
async def shell(rex: "Rex") -> "Rex":
    assert await rex.ask("create_session", startup_timeout=10) == {"output": "", "session_type": "bash"}
    return rex


class Rex:
    def __init__(self, api: httpx.AsyncClient, at: str) -> None:
        self.api, self.at = api, at

    async def post(self, route: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.api.post(f"{self.at}/{route}", json=_full(route, body), headers=headers)

    async def ask(self, route: str, **body: Any) -> dict[str, Any]:
        answer = await self.post(route, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def raised(self, route: str, **body: Any) -> dict[str, Any]:
        answer = await self.post(route, **body)
        assert answer.status_code == 511, answer.text
        return dict(answer.json()["swerexception"])

    async def says(self, command: str, **options: Any) -> str:
        return str((await self.ask("run_in_session", command=command, **options))["output"])


def _full(route: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the body as SWE-ReX's client sends it."""
    if route == "close":
        return None
    return {"action_type": "bash", **body} if route == "run_in_session" else body


async def actions_of(rex: Rex) -> list[dict[str, Any]]:
    trajectory = rex.at.split("/")[4]
    return list((await rex.api.get("/v1/actions", params={"trajectory": trajectory})).json()["items"])


async def test_existing_environment_works_as_a_runtime(api: httpx.AsyncClient) -> None:
    made = (await api.post("/v1/environments", json=SMALL)).json()
    rex = Rex(api, f"/v1/environments/{made['id']}/swerex")
    alive = await api.get(f"{rex.at}/is_alive")
    assert alive.json() == {"is_alive": True, "message": ""}
    await rex.ask("create_session", startup_timeout=10)
    assert await rex.says("cd /tmp; x=1") == ""
    assert await rex.says("pwd; echo $x") == "/tmp\n1\n"
    assert await rex.ask("close") == {}
    assert (await rex.raised("run_in_session", command="pwd"))["class_path"].endswith(".SessionDoesNotExistError")
    assert (await api.get(f"/v1/environments/{made['id']}")).json()["state"] == "live"
    await api.delete(f"/v1/environments/{made['id']}")
    gone = (await api.get(f"{rex.at}/is_alive")).json()
    assert not gone["is_alive"]
    refused = await rex.raised("execute", command=["true"])
    assert all(said["message"].startswith(f"environment {made['id']} is end") for said in (gone, refused))


async def test_trajectory_environment_starts_on_first_use_and_ends_on_close(rex: Rex) -> None:
    async def environments() -> list[dict[str, Any]]:
        found = await rex.api.get("/v1/environments", params={"task": "rex", "trajectory": rex.at.split("/")[4]})
        return list(found.json()["items"])

    assert (await rex.api.get(f"{rex.at}/is_alive")).json()["is_alive"]
    assert await environments() == []
    assert await rex.ask("execute", command=["pwd"]) == {"stdout": "/workspace\n", "stderr": "", "exit_code": 0}
    [made] = await environments()
    assert (made["memory_mib"], made["disk_mib"]) == (64, 32)
    await rex.ask("close")

    async def has_ended() -> bool:
        return [each["state"] for each in await environments()] == ["ended"]

    await eventually(has_ended)


@pytest.mark.parametrize("word", ["options", "with"])
@pytest.mark.parametrize("options", ["memory_mib=1", "colour=red", "template=no such"])
async def test_invalid_url_option_is_refused_by_name(api: httpx.AsyncClient, options: str, word: str) -> None:
    rex = Rex(api, f"/t/rex/trajectories/wrong/{word}/{options}/swerex")
    assert options.partition("=")[0] in (await rex.raised("execute", command=["true"]))["message"]


async def test_session_state_persists_between_commands(shell: Rex) -> None:
    assert await shell.says("declare -A m; m[k]=v; cd /tmp; f() { echo $(($1 * 2)); }") == ""
    assert await shell.says("pwd; echo ${m[k]}; f 21") == "/tmp\nv\n42\n"
    assert await shell.says("for i in 1 2\ndo\n  echo $i\ndone\ncat <<EOF\n${m[k]}\nEOF") == "1\n2\nv\n"
    assert (await shell.raised("create_session"))["class_path"] == "swerex.exceptions.SessionExistsError"
    assert await shell.ask("close_session") == {"session_type": "bash"}
    assert (await shell.raised("close_session"))["class_path"] == "swerex.exceptions.SessionDoesNotExistError"


async def test_command_in_an_unknown_session_is_refused(rex: Rex) -> None:
    raised = await rex.raised("run_in_session", command="touch made", session="a name/of any kind")
    assert raised["message"] == "session 'a name/of any kind' does not exist"
    assert (await rex.ask("execute", command=["ls"]))["stdout"] == ""


async def test_startup_source_files_are_sourced(rex: Rex) -> None:
    await rex.ask("write_file", path="/tmp/it's", content="x=1; echo sourced\n")
    sources = ['"/tmp/it\'s"', "/nowhere"]
    opened = await rex.ask("create_session", startup_source=sources, startup_timeout=10)
    assert opened["output"] == "sourced\nbash: /nowhere: No such file or directory\n"
    assert await rex.says("echo $x") == "1\n"


async def test_command_with_a_syntax_error_runs_nothing(shell: Rex) -> None:
    raised = await shell.raised("run_in_session", command="touch begun\nfor")
    assert raised["class_path"] == "swerex.exceptions.BashIncorrectSyntaxError"
    assert "syntax error" in raised["extra_info"]["bash_stderr"]
    assert await shell.says("ls") == ""


@pytest.mark.parametrize(
    ("check", "code"),
    [("silent", 3), ("ignore", None)],
)
async def test_check_option_controls_the_returned_exit_code(shell: Rex, check: str, code: int | None) -> None:
    said = await shell.ask("run_in_session", command="echo out; (exit 3)", check=check)
    assert (said["output"], said["exit_code"], said["failure_reason"]) == ("out\n", code, "")


async def test_nonzero_exit_code_raises_by_default(shell: Rex) -> None:
    raised = await shell.raised("run_in_session", command="echo out; (exit 3)", error_msg="Wrong")
    assert raised["class_path"] == "swerex.exceptions.NonZeroExitCodeError"
    assert raised["message"].startswith("Wrong: Command 'echo out; (exit 3)' failed with exit code 3.")


async def test_output_that_imitates_the_end_marker_is_returned(shell: Rex) -> None:
    forged = f"{'0' * 32}:2:bash: syntax error"
    assert await shell.says(f"echo {forged!r}") == f"{forged}\n"


async def test_command_past_its_timeout_raises_and_keeps_the_session(shell: Rex) -> None:
    raised = await shell.raised("run_in_session", command="x=1; echo begun; sleep 100", timeout=0.5)
    assert raised["class_path"] == "swerex.exceptions.CommandTimeoutError"
    assert raised["message"].startswith("timeout after 0.5 seconds while running command")
    assert raised["extra_info"]["output"].strip() == "begun"
    interrupted = await shell.ask("run_in_session", action_type="bash_interrupt")
    assert (interrupted["output"], interrupted["exit_code"]) == ("begun", 0)
    assert (await shell.ask("run_in_session", action_type="bash_interrupt"))["output"] == ""
    assert await shell.says("echo $x") == "1\n"


async def test_command_waiting_for_stdin_times_out(shell: Rex) -> None:
    raised = await shell.raised("run_in_session", command="read line; echo got $line", timeout=0.5)
    assert raised["class_path"] == "swerex.exceptions.CommandTimeoutError"


async def test_exit_ends_the_session_and_raises_eof(shell: Rex) -> None:
    raised = await shell.raised("run_in_session", command="echo bye; exit 3")
    assert raised["class_path"] == "pexpect.exceptions.EOF"
    assert raised["extra_info"] == {"output": "bye\n", "exit_code": 3}
    assert (await shell.raised("run_in_session", command="true"))["class_path"].endswith("SessionDoesNotExistError")


@pytest.mark.parametrize("option", [{"is_interactive_command": True}, {"is_interactive_quit": True}, {"expect": [">"]}])
async def test_interactive_commands_are_refused(shell: Rex, option: dict[str, Any]) -> None:
    raised = await shell.raised("run_in_session", command="touch made", **option)
    assert raised["class_path"] == "swerex.exceptions.SwerexException"
    assert raised["message"].startswith("not implemented: ")
    assert await shell.says("ls") == ""


async def test_truncated_output_is_reported(shell: Rex) -> None:
    said = await shell.ask("run_in_session", command="head -c 2000000 /dev/zero | tr '\\0' x")
    assert said["failure_reason"].startswith("the output was truncated: it had 20000")
    assert said["output"].endswith(f"x\n{said['failure_reason']}\n")
    raised = await shell.raised("execute", command="head -c 2000000 /dev/zero", shell=True)
    assert raised["message"].startswith("stdout has 2000000 bytes, but only the first 1048576")


async def test_exceeded_limit_is_a_failure_reason_without_exception(shell: Rex) -> None:
    program = "x = bytearray(200 << 20); print(len(x))"
    said = await shell.ask("run_in_session", command=f"python3 -c '{program}'", check="silent")
    assert said["exit_code"] == 0 or said["failure_reason"] == "limit exceeded: memory", said


async def test_execute_uses_the_given_directory_and_variables(rex: Rex) -> None:
    await rex.ask("execute", command=["mkdir", "/tmp/a dir"])
    asked = {"command": "pwd; echo $A-$HOME; echo err >&2; exit 3", "shell": True, "cwd": "/tmp/a dir"}
    said = await rex.ask("execute", **asked, env={"A": "1 2"})
    assert said == {"stdout": "/tmp/a dir\n1 2-\n", "stderr": "err\n", "exit_code": 3}
    merged = await rex.ask("execute", **asked, env={"A": "1 2"}, merge_output_streams=True)
    assert merged == {"stdout": "/tmp/a dir\n1 2-\nerr\n", "stderr": "", "exit_code": 3}


@pytest.mark.parametrize(
    ("asked", "of", "says"),
    [
        ({"command": ["nosuch"]}, "FileNotFoundError", "[Errno 2] No such file or directory: 'nosuch'"),
        ({"command": ["nosuch"], "cwd": "/tmp"}, "FileNotFoundError", "'nosuch'"),
        ({"command": ["nosuch"], "merge_output_streams": True}, "FileNotFoundError", "'nosuch'"),
        ({"command": ["pwd"], "cwd": "/nowhere"}, "FileNotFoundError", "'/nowhere'"),
        ({"command": ["/etc/passwd"]}, "PermissionError", "[Errno 13] Permission denied: '/etc/passwd'"),
        ({"command": ["true"], "env": {"": "x"}}, "ValueError", "names of environment variables must not be empty"),
    ],
)
async def test_execute_failure_raises_the_exception_that_python_raises(
    rex: Rex, asked: dict[str, Any], of: str, says: str
) -> None:
    raised = await rex.raised("execute", **asked)
    assert raised["class_path"] == f"builtins.{of}"
    assert says in raised["message"]


async def test_execute_timeout_raises_and_a_signal_is_the_exit_code(rex: Rex) -> None:
    raised = await rex.raised("execute", command="echo so far; sleep 100", shell=True, timeout=0.5)
    assert raised["class_path"] == "swerex.exceptions.CommandTimeoutError"
    assert raised["extra_info"]["stdout"] == "so far\n"
    assert (await rex.ask("execute", command="kill -9 $$", shell=True))["exit_code"] == -9


async def test_files_are_written_and_read_within_the_environment_rights(rex: Rex) -> None:
    assert await rex.ask("write_file", path="/tmp/x/y/-a b", content="grüße\r\n") == {}
    assert await rex.ask("read_file", path="/tmp/x/y/-a b") == {"content": "grüße\n"}
    assert (await rex.ask("execute", command=["wc", "-c", "/tmp/x/y/-a b"]))["stdout"].startswith("9 ")
    missing = await rex.raised("read_file", path="/tmp/nothing")
    assert missing["class_path"] == "builtins.FileNotFoundError"
    forbidden = await rex.raised("write_file", path="/etc/passwd", content="")
    assert forbidden["class_path"] in ("builtins.PermissionError", "builtins.OSError")


async def test_upload_writes_files_and_unpacks_archives(rex: Rex) -> None:
    async def upload(content: bytes, target: str, *, unzip: str) -> httpx.Response:
        form = {"target_path": target, "unzip": unzip}
        return await rex.api.post(f"{rex.at}/upload", data=form, files={"file": ("a", content)})

    content = bytes(range(256)) * 4
    assert (await upload(content, "/tmp/deep/bytes", unzip="false")).json() == {}
    summed = await rex.ask("execute", command="cksum < /tmp/deep/bytes", shell=True)
    assert summed["stdout"].split()[1] == "1024"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a/b.txt", "b")
        archive.writestr("../../out.txt", "out")
    assert (await upload(packed.getvalue(), "/tmp/tree", unzip="true")).json() == {}
    listed = await rex.ask("execute", command="cd /tmp/tree && find . -type f | sort", shell=True)
    assert listed["stdout"] == "./a/b.txt\n./out.txt\n"
    large = random.Random(0).randbytes(7 << 20)
    assert (await upload(large, "/tmp/large", unzip="false")).json() == {}
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a/large", large)
    assert (await upload(packed.getvalue(), "/tmp/tree", unzip="true")).json() == {}
    too_large = (await upload(large * 5, "/tmp/larger", unzip="false")).json()["swerexception"]
    assert "33554432 bytes, the size of the environment's disk" in too_large["message"]
    look = "cd /tmp; cmp large tree/a/large; ls -A ~; cat tree/a/b.txt"
    compared = await rex.ask("execute", command=look, shell=True)
    assert (compared["stdout"], compared["exit_code"]) == ("b", 0)
    broken = (await upload(b"no archive", "/tmp/tree", unzip="true")).json()["swerexception"]
    assert broken["class_path"] == "zipfile.BadZipFile"
    assert (await rex.api.post(f"{rex.at}/upload", data={"target_path": "a"})).status_code in (415, 422)


async def test_environment_from_a_template_runs_sweagent_setup(api: httpx.AsyncClient) -> None:
    """SWE-agent starts like this and puts its files in /root."""
    rex = Rex(api, "/t/rex/trajectories/image/options/template=small,memory_mib=64/swerex")
    answer = await rex.post("execute", command=["ls", "-a", "/root"])
    if "no node" in answer.text:
        pytest.skip("this machine's launcher has no templates")
    opened = await rex.ask("create_session", startup_source=["/root/.bashrc"], startup_timeout=10)
    assert (opened["output"], await rex.says("echo $FROM")) == ("", "bashrc\n")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("bin/tool", "echo a tool\n")
    form = {"target_path": "/root/tools/first", "unzip": "true"}
    assert (await api.post(f"{rex.at}/upload", data=form, files={"file": packed.getvalue()})).json() == {}
    await rex.ask("write_file", path="/root/state.json", content="{}")
    assert await rex.says("cd /root; bash tools/first/bin/tool; cat state.json") == "a tool\n{}"
    assert await rex.ask("read_file", path="/root/state.json") == {"content": "{}"}
    await rex.ask("close")


async def test_infrastructure_error_raises_with_its_reason(rex: Rex) -> None:
    going = asyncio.create_task(rex.raised("execute", command=["sleep", "100"]))
    await eventually_runs(rex)
    late = await rex.post("execute", command=["true"], headers={"tangram-deadline_s": "0.3"})
    said = late.json()["swerexception"]
    assert said["message"].startswith("deadline_in_queue: the command could not start in time")
    assert (said["class_path"], late.status_code) == ("swerex.exceptions.SwerexException", 511)
    [running] = [each for each in await actions_of(rex) if each["state"] == "running"]
    await rex.api.delete(f"/v1/actions/{running['id']}")
    cancelled = await going
    assert cancelled["message"].startswith("cancelled: ")
    assert cancelled["extra_info"]["is_infrastructure"]


async def eventually_runs(rex: Rex) -> None:
    async def runs() -> bool:
        return any(each["state"] == "running" for each in await actions_of(rex))

    await eventually(runs)


async def test_client_disconnect_cancels_the_command(shell: Rex) -> None:
    body = {"action_type": "bash", "command": "sleep 100"}
    with pytest.raises(httpx.ReadTimeout):
        await shell.api.post(f"{shell.at}/run_in_session", json=body, timeout=0.7)

    async def is_cancelled() -> bool:
        return (await actions_of(shell))[0].get("outcome") == "cancelled"

    await eventually(is_cancelled)
    assert await shell.says("echo fine") == "fine\n"


async def test_repeated_request_id_runs_the_command_once(shell: Rex) -> None:
    said = [
        (await shell.post("run_in_session", command="echo $((x += 1))", headers={"x-request-id": "r"})).json()["output"]
        for _ in range(2)
    ]
    assert said == ["1\n", "1\n"]
    assert await shell.says("echo $x") == "1\n"


async def test_environment_of_another_project_is_not_found(system: System, api: httpx.AsyncClient) -> None:
    made = (await api.post("/v1/environments", json=SMALL)).json()
    at = f"{system.url}/v1/environments/{made['id']}/swerex"
    async with httpx.AsyncClient() as others:
        answer = await others.post(f"{at}/execute", json={"command": ["true"]}, headers={"x-api-key": OTHERS_KEY})
        assert answer.json()["swerexception"]["message"] == f"environment {made['id']} does not exist in this project"
        assert (await others.get(f"{at}/is_alive", headers={"x-api-key": "tk_no"})).status_code == 401
        alive = await others.get(f"{at}/is_alive", headers={"x-api-key": API_KEY})
        assert alive.json()["is_alive"]
    await api.delete(f"/v1/environments/{made['id']}")


async def test_stopping_gateway_raises_and_cancels_the_command(rex: Rex, system: System) -> None:
    going = asyncio.create_task(rex.raised("execute", command=["sleep", "100"]))
    await eventually_runs(rex)
    await asyncio.to_thread(system.kill, "gateway", signal.SIGTERM)
    assert "this gateway is stopping" in (await going)["message"]
    await system.start("gateway")

    async def is_cancelled() -> bool:
        return [each.get("outcome") for each in await actions_of(rex)] == ["cancelled"]

    await eventually(is_cancelled)
