"""Test SandboxFusion's `/run_code` on real sandboxes, with the requests that verl and others send."""

import asyncio
import signal
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.conditions import eventually
from support.postgres import Databases
from support.system import System, running_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces") as system:
        yield system
    await databases.drop(owner_url)


async def ran(api: httpx.AsyncClient, path: str = "/run_code", **body: Any) -> dict[str, Any]:
    answer = await api.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def listed(api: httpx.AsyncClient, task: str) -> list[dict[str, Any]]:
    return list((await api.get("/v1/actions", params={"task": task})).json()["items"])


async def test_program_runs_and_its_output_is_returned(api: httpx.AsyncClient) -> None:
    said = await ran(
        api,
        compile_timeout=10,
        run_timeout=10,
        code="print(int(input()) + 1)",
        stdin="41\n",
        memory_limit_MB=1024,
        language="python",
        files={},
        fetch_files=[],
    )
    assert (said["status"], said["message"], said["compile_result"], said["files"]) == ("Success", "", None, {})
    assert (
        said["run_result"].items() >= {"status": "Finished", "return_code": 0, "stdout": "42\n", "stderr": ""}.items()
    )
    assert said["run_result"]["execution_time"] > 0


async def test_code_without_a_language_runs_as_python(api: httpx.AsyncClient) -> None:
    said = await ran(api, code="import sys; sys.stderr.write('e'); print('o')")
    assert said["run_result"]["stdout"] + said["run_result"]["stderr"] == "o\ne"


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("raise SystemExit(3)", {"status": "Finished", "return_code": 3}),
        ("def f(:\n", {"status": "Finished", "return_code": 1}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", {"status": "Finished", "return_code": -15}),
        ("print('so far', flush=True)\nwhile True: pass", {"status": "TimeLimitExceeded", "return_code": None}),
    ],
)
async def test_failing_program_is_reported_as_failed(api: httpx.AsyncClient, code: str, part: dict[str, Any]) -> None:
    said = await ran(api, code=code, run_timeout=1.5)
    assert (said["status"], said["message"]) == ("Failed", "")
    assert said["run_result"].items() >= part.items()
    if part["return_code"] is None:
        assert said["run_result"]["stdout"] == "so far\n"


async def test_input_files_are_written_and_requested_files_returned(api: httpx.AsyncClient) -> None:
    said = await ran(
        api,
        code="cat given/a.txt > made.txt; echo b >> made.txt",
        language="bash",
        files={"given/a.txt": b64encode(b"a\n").decode(), "none": None},
        fetch_files=["made.txt", "not there"],
    )
    assert {path: b64decode(content) for path, content in said["files"].items()} == {"made.txt": b"a\nb\n"}


@pytest.mark.parametrize("language", ["python", "cpp"])
async def test_files_with_absolute_paths_are_written_and_returned(api: httpx.AsyncClient, language: str) -> None:
    code = {
        "python": "text = open('/tmp/new/in put.txt').read()\nopen('/tmp/out', 'w').write(text * 2); print(text)",
        "cpp": "#include <fstream>\n#include <iostream>\n#include <string>\nint main() { std::string t; "
        'std::ifstream("/tmp/new/in put.txt") >> t; std::ofstream("/tmp/out") << t + t; std::cout << t << "\\n"; }',
    }[language]
    files = {"/tmp/new/in put.txt": b64encode(b"abc").decode(), "near.txt": b64encode(b"n").decode()}
    said = await ran(
        api,
        code=code,
        language=language,
        files=files,
        fetch_files=["/tmp/out", "near.txt", "/tmp/none"],
    )
    assert (said["status"], said["run_result"]["stdout"]) == ("Success", "abc\n"), said
    assert {path: b64decode(content) for path, content in said["files"].items()} == {
        "/tmp/out": b"abcabc",
        "near.txt": b"n",
    }


async def test_file_that_the_environment_refuses_is_a_sandbox_error(api: httpx.AsyncClient) -> None:
    said = await ran(api, code="print(1)", files={"/usr/lib/in.txt": b64encode(b"x").decode()})
    assert (said["status"], said["run_result"]) == ("SandboxError", None)
    assert "cannot write '/usr/lib/in.txt'" in said["message"]


async def test_program_cannot_turn_its_failure_into_a_sandbox_error_of_its_files(api: httpx.AsyncClient) -> None:
    code = "import os; open('.tangram-files', 'w'); os.chmod('.', 0); raise SystemExit(3)"
    said = await ran(api, code=code, fetch_files=["/tmp/out"])
    assert (said["status"], said["run_result"]["return_code"]) == ("Failed", 3), said


BLOCKING_PROGRAM = """
import glob, os
open('/tmp/first', 'wb').truncate(32 << 20)
open('/tmp/out', 'w').close()
READER, WRITER = os.pipe()
if not os.fork():
    os.setsid()
    os.close(READER)
    for fd in (0, 1, 2):
        os.dup2(os.open('/dev/null', os.O_RDWR), fd)
    os.write(WRITER, b'ready')
    os.close(WRITER)
    BLOCK
os.read(READER, 5)
os._exit(3)
"""
BLOCKERS = {
    "fifo in place of a copy": """while True:
        for directory in glob.glob('.tangram-files*'):
            try:
                os.mkfifo(directory + '/1')
            except OSError:
                pass""",
    "fifo in place of a file": """while True:
        for step in (lambda: os.unlink('/tmp/out'), lambda: os.mkfifo('/tmp/out'), lambda: os.unlink('/tmp/out'),
                     lambda: open('/tmp/out', 'x').close()):
            try:
                step()
            except OSError:
                pass""",
    "stopped action": """while True:
        for line in glob.glob('/proc/[0-9]*/cmdline'):
            try:
                if b'.tangram-files' in open(line, 'rb').read():
                    os.kill(int(line.split('/')[2]), 19)
            except OSError:
                pass""",
}


@pytest.mark.slow
@pytest.mark.parametrize("blocker", BLOCKERS)
async def test_failed_program_that_blocks_its_files_stays_failed(api: httpx.AsyncClient, blocker: str) -> None:
    code = BLOCKING_PROGRAM.replace("BLOCK", BLOCKERS[blocker])
    said = await ran(api, code=code, fetch_files=["/tmp/first", *["/tmp/out"] * 20])
    assert (said["status"], said["run_result"]["return_code"]) == ("Failed", 3), said
    assert said["run_result"]["status"] == "Finished"
    if blocker == "stopped action":
        assert said["message"] == "files with absolute paths were not returned: reading them took longer than 5 s"
        assert said["files"] == {}


@pytest.mark.parametrize("path", ["/tmp/a\0b", "/tmp/", "/" + "a" * 2000])
async def test_absolute_path_that_no_file_can_have_is_refused(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.post("/run_code", json={"code": "1", "fetch_files": [path]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "fetch_files")


async def test_compiled_program_has_two_results_and_no_remaining_environment(api: httpx.AsyncClient) -> None:
    code = "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n + 1; }\n"
    said = await ran(api, "/t/cpp/run_code?trajectory=r1", code=code, language="cpp", stdin="1", compile_timeout=60)
    if said["status"] == "SandboxError" and "g++" in said["message"]:
        pytest.skip(said["message"])
    assert said["status"] == "Success"
    assert (said["compile_result"]["return_code"], said["run_result"]["stdout"]) == (0, "2")

    async def is_over() -> bool:
        found = (await api.get("/v1/environments", params={"task": "cpp"})).json()["items"]
        return all(each["state"] != "live" for each in found)

    await eventually(is_over)
    broken = await ran(api, "/t/cpp/run_code", code="int main() {", language="cpp", compile_timeout=60)
    assert (broken["status"], broken["run_result"]) == ("Failed", None)
    assert broken["compile_result"]["return_code"] == 1
    assert "error" in broken["compile_result"]["stderr"]


async def test_java_program_is_compiled_and_run(api: httpx.AsyncClient) -> None:
    code = "public class Main { public static void main(String[] a) { System.out.println(6 * 7); } }"
    said = await ran(api, code=code, language="java", compile_timeout=60, run_timeout=30, memory_limit_MB=1024)
    if said["status"] == "SandboxError" and "javac" in said["message"]:
        pytest.skip(said["message"])
    assert said["run_result"] is not None, said
    assert said["run_result"]["stdout"] == "42\n"


async def test_missing_compiler_is_a_sandbox_error(api: httpx.AsyncClient) -> None:
    said = await ran(api, code="int main() {}", language="swift")
    assert said["status"] == "SandboxError"
    assert "cannot run 'swiftc'" in said["message"]
    pretended = "import sys; sys.stderr.write(\"cannot run 'python3'\\n\"); sys.exit(127)"
    said = await ran(api, code=pretended)
    assert (said["status"], said["run_result"]["return_code"]) == ("Failed", 127)


@pytest.mark.parametrize("language", ["python", "bash", "cpp"])
async def test_program_that_never_ran_is_a_sandbox_error(api: httpx.AsyncClient, language: str) -> None:
    said = await ran(api, code="exit 1", language=language, files={"a": "", "a/b": ""})
    assert said["status"] == "SandboxError"
    assert "the program was not run" in said["message"]


async def test_exceeded_memory_limit_is_a_program_failure(api: httpx.AsyncClient) -> None:
    said = await ran(api, code="x = bytearray(400 << 20)\nprint(len(x))", memory_limit_MB=64)
    assert said["status"] in ("Failed", "Success")  # where memory is not enforced
    if said["status"] == "Failed":
        assert "limit exceeded: memory" in said["run_result"]["stderr"]
        assert said["run_result"]["return_code"] not in (0, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"code": "1", "language": "cobol"}, "language"),
        ({}, "code"),
        ({"code": "1", "run_timeout": 0}, "run_timeout"),
        ({"code": "1", "memory_limit_MB": 1}, "memory_limit_MB"),
        ({"code": "1", "files": {"../a": ""}}, "files.../a.[key]"),
        ({"code": "\x00"}, "code"),
    ],
)
async def test_invalid_request_is_refused_with_its_field(
    api: httpx.AsyncClient, body: dict[str, Any], field: str
) -> None:
    answer = await api.post("/run_code", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_request_past_within_returns_504_and_a_retry_resumes_it(api: httpx.AsyncClient, system: System) -> None:
    system.processes["scheduler"].send_signal(signal.SIGSTOP)
    body = {"code": "print('once')"}
    answer = await api.post("/t/tries/run_code?within=0.5", json=body)
    assert (answer.status_code, answer.json()["code"]) == (504, "gateway_timeout")
    next_try = asyncio.create_task(api.post("/t/tries/run_code?within=0.5", json=body))
    assert (await next_try).status_code == 504
    system.processes["scheduler"].send_signal(signal.SIGCONT)
    last: dict[str, Any] = {}

    async def has_ended() -> bool:
        answer = await api.post("/t/tries/run_code?within=0.5", json=body)
        last.update(answer.json())
        return answer.status_code == 200

    await eventually(has_ended)
    assert last["run_result"]["stdout"] == "once\n"
    assert len(await listed(api, "tries")) == 1
    assert (await ran(api, "/t/tries/run_code?within=0.5", **body))["status"] == "Success"
    assert len(await listed(api, "tries")) == 2


async def test_identical_code_of_two_tasks_runs_as_two_actions(api: httpx.AsyncClient, system: System) -> None:
    system.processes["scheduler"].send_signal(signal.SIGSTOP)
    for task in ("first", "second"):
        answer = await api.post("/run_code?within=0.3", json={"code": "1"}, headers={"tangram-task": task})
        assert answer.status_code == 504
    system.processes["scheduler"].send_signal(signal.SIGCONT)
    assert [len(await listed(api, task)) for task in ("first", "second")] == [1, 1]


async def test_client_disconnect_cancels_the_program(api: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await api.post("/t/gone/run_code", json={"code": "while True: pass", "run_timeout": 100}, timeout=1)

    async def is_cancelled() -> bool:
        return [each.get("outcome") for each in await listed(api, "gone")] == ["cancelled"]

    await eventually(is_cancelled)
