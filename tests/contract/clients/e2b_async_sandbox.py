"""E2B's asynchronous client, unmodified, against a server of ours. Prints one JSON object: a result for each case.

Arguments: the directory of the installed packages. Address and key are in the environment, as the client reads them.
"""

import asyncio
import io
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

from e2b import AsyncSandbox, SandboxQuery
from e2b.sandbox.commands.command_handle import PtySize

CASES: dict[str, Callable[[AsyncSandbox], Awaitable[Any]]] = {}


def case(run: Callable[[AsyncSandbox], Awaitable[Any]]) -> Callable[[AsyncSandbox], Awaitable[Any]]:
    """Register a case by its name."""
    CASES[run.__name__] = run
    return run


async def raised(call: Awaitable[Any]) -> list[Any]:
    """Return class and exit code of the exception that the call raises."""
    try:
        return ["nothing", repr(await call)]
    except Exception as error:  # noqa: BLE001 - its class is the result
        return [type(error).__name__, getattr(error, "exit_code", None)]


@case
async def command(sandbox: AsyncSandbox) -> Any:
    ran = await sandbox.commands.run("echo out; echo err >&2", cwd="/tmp", envs={"A": "1"})
    return [ran.stdout, ran.stderr, ran.exit_code]


@case
async def exit_code(sandbox: AsyncSandbox) -> Any:
    return await raised(sandbox.commands.run("exit 3"))


@case
async def timeout(sandbox: AsyncSandbox) -> Any:
    return await raised(sandbox.commands.run("sleep 60", timeout=1))


@case
async def variables(sandbox: AsyncSandbox) -> Any:
    return (await sandbox.commands.run("echo $FROM_CREATE")).stdout


@case
async def callbacks(sandbox: AsyncSandbox) -> Any:
    seen: list[str] = []
    await sandbox.commands.run("echo a; echo b >&2", on_stdout=seen.append, on_stderr=seen.append)
    return sorted(seen)


@case
async def concurrent(sandbox: AsyncSandbox) -> Any:
    ran = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(8)))
    return [each.stdout for each in ran]


@case
async def background(sandbox: AsyncSandbox) -> Any:
    handle = await sandbox.commands.run("read a; echo got:$a; cat", background=True, stdin=True)
    await handle.send_stdin("x\n")
    await sandbox.files.write("/tmp/beside", "written beside a running command")
    listed = handle.pid in [each.pid for each in await sandbox.commands.list()]
    await handle.send_stdin("y\n")
    await handle.close_stdin()
    return [listed, (await handle.wait()).stdout, await sandbox.commands.kill(handle.pid)]


@case
async def large_output(sandbox: AsyncSandbox) -> Any:
    return len((await sandbox.commands.run("head -c 2000000 /dev/zero | tr '\\0' x")).stdout)


@case
async def files(sandbox: AsyncSandbox) -> Any:
    await sandbox.files.write("/tmp/d/é x", "text")
    await sandbox.files.write("/tmp/d/stream", io.BytesIO(b"s" * 2_000_000))
    names = sorted(each.name for each in await sandbox.files.list("/tmp/d"))
    moved = (await sandbox.files.rename("/tmp/d/é x", "/tmp/d/moved")).path
    size = len(await sandbox.files.read("/tmp/d/stream", format="bytes"))
    made = [await sandbox.files.make_dir("/tmp/new"), await sandbox.files.make_dir("/tmp/new")]
    await sandbox.files.remove("/tmp/d/stream")
    there = [await sandbox.files.exists("/tmp/d/stream"), await sandbox.files.exists("/tmp/d/moved")]
    return [names, moved, await sandbox.files.read("/tmp/d/moved"), size, made, there]


@case
async def missing_file(sandbox: AsyncSandbox) -> Any:
    return await raised(sandbox.files.read("/tmp/nothing"))


@case
async def signed_url(sandbox: AsyncSandbox) -> Any:
    await sandbox.files.write("/tmp/signed", "signed")
    url = sandbox.download_url("/tmp/signed", use_signature_expiration=60)
    return [await fetched(url, {}), await fetched(url.replace("v1_", "v1_A"), {})]


@case
async def terminal(sandbox: AsyncSandbox) -> Any:
    seen: list[bytes] = []

    async def add(data: bytes) -> None:
        seen.append(data)

    handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=add)
    await sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=100))
    await sandbox.pty.send_stdin(handle.pid, b"stty size; exit 5\n")
    ended = await raised(handle.wait())
    return [ended, b"40 100" in b"".join(seen)]


@case
async def watched(sandbox: AsyncSandbox) -> Any:
    events: set[tuple[str, str]] = set()
    written = asyncio.Event()

    def add(event: Any) -> None:
        events.add((event.name, event.type.value))
        if event.type.value == "write":
            written.set()

    watch = await sandbox.files.watch_dir("/tmp/new", add)
    await sandbox.files.write("/tmp/new/f", "x")
    await asyncio.wait_for(written.wait(), 30)
    await watch.stop()
    return sorted(map(list, events))


@case
async def forked(sandbox: AsyncSandbox) -> Any:
    [copy] = await sandbox.fork(count=1, timeout=60)
    snapshot = await sandbox.create_snapshot()
    other = await AsyncSandbox.create(snapshot.snapshot_id, timeout=60)
    read = [await each.files.read("/tmp/signed") for each in (copy, other)]
    return [read, await copy.kill(), await other.kill(), await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)]


@case
async def listed(sandbox: AsyncSandbox) -> Any:
    query = SandboxQuery(metadata={"odd key": "v=1&x é"})
    return [each.sandbox_id == sandbox.sandbox_id for each in await AsyncSandbox.list(query=query).next_items()]


@case
async def ports(sandbox: AsyncSandbox) -> Any:
    server = await sandbox.commands.run("cd /tmp && exec python3 -m http.server 18124", background=True)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "18124"}
    content: Any = None
    for _ in range(100):
        if (content := await fetched(f"{os.environ['E2B_SANDBOX_URL']}/signed", headers)) == "signed":
            break
        await asyncio.sleep(0.1)
    host = sandbox.get_host(3000)
    return [content, await server.kill(), host == f"3000-{sandbox.sandbox_id}.ports.example"]


@case
async def paused(sandbox: AsyncSandbox) -> Any:
    said = [await sandbox.pause(), await sandbox.pause(), await sandbox.is_running()]
    resumed = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=120)
    return [*said, await resumed.is_running(), await resumed.files.read("/tmp/signed")]


@case
async def cancelled(sandbox: AsyncSandbox) -> Any:
    """The process of a cancelled call continues, as with E2B."""
    running = asyncio.create_task(sandbox.commands.run("sleep 300", timeout=0))
    while not (found := [each for each in await sandbox.commands.list() if "sleep 300" in each.args]):
        await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    still = [each.pid for each in await sandbox.commands.list()]
    return [found[0].pid in still, await sandbox.commands.kill(found[0].pid)]


@case
async def killed(sandbox: AsyncSandbox) -> Any:
    ended = [await sandbox.kill(), await sandbox.kill(), await sandbox.is_running()]
    return [*ended, (await raised(sandbox.commands.run("true")))[0]]


async def fetched(url: str, headers: dict[str, str]) -> str | int:
    """Return the content of a URL, or the status of an error."""

    def fetch() -> str | int:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            return refused.code

    return await asyncio.to_thread(fetch)


async def main() -> None:
    """Run all cases in one sandbox."""
    sandbox = await AsyncSandbox.create(timeout=300, metadata={"odd key": "v=1&x é"}, envs={"FROM_CREATE": "yes"})
    results: dict[str, Any] = {}
    for name, run in CASES.items():
        try:
            results[name] = await run(sandbox)
        except Exception as error:  # noqa: BLE001 - the other cases still run
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main())
