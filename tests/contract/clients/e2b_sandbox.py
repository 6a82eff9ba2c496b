"""E2B's client, unmodified, against a server of ours. Prints one JSON object: a result for each case.

Arguments: the directory of the installed packages. Address and key are in the environment, as the client reads them.
"""

import io
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

from e2b import Sandbox, SandboxQuery
from e2b.sandbox.commands.command_handle import PtySize

CASES: dict[str, Callable[[Sandbox], Any]] = {}


def case(run: Callable[[Sandbox], Any]) -> Callable[[Sandbox], Any]:
    """Register a case by its name."""
    CASES[run.__name__] = run
    return run


def raised(call: Callable[[], Any]) -> list[Any]:
    """Return class and exit code of the exception that the call raises."""
    try:
        return ["nothing", repr(call())]
    except Exception as error:  # noqa: BLE001 - its class is the result
        return [type(error).__name__, getattr(error, "exit_code", None)]


@case
def command(sandbox: Sandbox) -> Any:
    ran = sandbox.commands.run("echo out; echo err >&2", cwd="/tmp", envs={"A": "1"})
    return [ran.stdout, ran.stderr, ran.exit_code]


@case
def exit_code(sandbox: Sandbox) -> Any:
    return raised(lambda: sandbox.commands.run("exit 3"))


@case
def timeout(sandbox: Sandbox) -> Any:
    return raised(lambda: sandbox.commands.run("sleep 60", timeout=1))


@case
def variables(sandbox: Sandbox) -> Any:
    return sandbox.commands.run("echo $FROM_CREATE").stdout


@case
def background(sandbox: Sandbox) -> Any:
    handle = sandbox.commands.run("read a; echo got:$a; cat", background=True, stdin=True)
    handle.send_stdin("x\n")
    sandbox.files.write("/tmp/beside", "written beside a running command")
    listed = handle.pid in [each.pid for each in sandbox.commands.list()]
    handle.send_stdin("y\n")
    handle.close_stdin()
    return [listed, handle.wait().stdout, sandbox.commands.kill(handle.pid)]


@case
def large_output(sandbox: Sandbox) -> Any:
    return len(sandbox.commands.run("head -c 2000000 /dev/zero | tr '\\0' x").stdout)


@case
def files(sandbox: Sandbox) -> Any:
    sandbox.files.write("/tmp/d/é x", "text")
    sandbox.files.write("/tmp/d/stream", io.BytesIO(b"s" * 2_000_000))
    names = sorted(each.name for each in sandbox.files.list("/tmp/d"))
    moved = sandbox.files.rename("/tmp/d/é x", "/tmp/d/moved").path
    size = len(sandbox.files.read("/tmp/d/stream", format="bytes"))
    made = [sandbox.files.make_dir("/tmp/new"), sandbox.files.make_dir("/tmp/new")]
    sandbox.files.remove("/tmp/d/stream")
    there = [sandbox.files.exists("/tmp/d/stream"), sandbox.files.exists("/tmp/d/moved")]
    return [names, moved, sandbox.files.read("/tmp/d/moved"), size, made, there]


@case
def missing_file(sandbox: Sandbox) -> Any:
    return raised(lambda: sandbox.files.read("/tmp/nothing"))


@case
def signed_url(sandbox: Sandbox) -> Any:
    sandbox.files.write("/tmp/signed", "signed")
    url = sandbox.download_url("/tmp/signed", use_signature_expiration=60)
    with urllib.request.urlopen(url, timeout=30) as answer:
        content = answer.read().decode()
    try:
        urllib.request.urlopen(url.replace("v1_", "v1_A"), timeout=30)
    except urllib.error.HTTPError as refused:
        return [content, refused.code]
    return [content, 200]


@case
def terminal(sandbox: Sandbox) -> Any:
    handle = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=100))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit 5\n")
    return raised(handle.wait)


@case
def watched(sandbox: Sandbox) -> Any:
    watch = sandbox.files.watch_dir("/tmp/new")
    sandbox.files.write("/tmp/new/f", "x")
    events = {(each.name, each.type.value) for each in watch.get_new_events()}
    watch.stop()
    return sorted(map(list, events))


@case
def forked(sandbox: Sandbox) -> Any:
    [copy] = sandbox.fork(count=1, timeout=60)
    snapshot = sandbox.create_snapshot()
    other = Sandbox.create(snapshot.snapshot_id, timeout=60)
    read = [each.files.read("/tmp/signed") for each in (copy, other)]
    return [read, copy.kill(), other.kill(), Sandbox.delete_snapshot(snapshot.snapshot_id)]


@case
def listed(sandbox: Sandbox) -> Any:
    query = SandboxQuery(metadata={"odd key": "v=1&x é"})
    return [each.sandbox_id == sandbox.sandbox_id for each in Sandbox.list(query=query).next_items()]


@case
def paused(sandbox: Sandbox) -> Any:
    said = [sandbox.pause(), sandbox.pause(), sandbox.is_running()]
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=120)
    return [*said, resumed.is_running(), resumed.files.read("/tmp/signed")]


@case
def ports(sandbox: Sandbox) -> Any:
    serve = "cd /tmp && exec python3 -m http.server 18123"
    server = sandbox.commands.run(serve, background=True)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "18123"}
    request = urllib.request.Request(f"{os.environ['E2B_SANDBOX_URL']}/signed", headers=headers)
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read().decode()
            break
        except urllib.error.HTTPError as refused:
            content = str(refused.code)
            time.sleep(0.1)
    host = sandbox.get_host(3000)
    return [content, server.kill(), host == f"3000-{sandbox.sandbox_id}.ports.example"]


@case
def unsupported(sandbox: Sandbox) -> Any:
    try:
        sandbox.update_network({"deny_out": ["8.8.8.8"]})
    except Exception as error:  # noqa: BLE001 - its text is the result
        return "not supported by this server: `denyOut`" in str(error)
    return False


@case
def killed(sandbox: Sandbox) -> Any:
    return [sandbox.kill(), sandbox.kill(), sandbox.is_running(), raised(lambda: sandbox.commands.run("true"))[0]]


def main() -> None:
    """Run all cases in one sandbox."""
    sandbox = Sandbox.create(timeout=300, metadata={"odd key": "v=1&x é"}, envs={"FROM_CREATE": "yes"})
    results: dict[str, Any] = {}
    for name, run in CASES.items():
        try:
            results[name] = run(sandbox)
        except Exception as error:  # noqa: BLE001 - the other cases still run
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
