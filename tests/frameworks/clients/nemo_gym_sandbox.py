"""Use the sandbox provider `tangram` through NeMo Gym's sandbox API. Prints the results as JSON."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxSpec

from arl_tangram import AsyncTangram

SPEC = SandboxSpec(
    image="agent",
    workdir="/app",
    env={"GREETING": "hello"},
    files={"/app/data/a.txt": "é"},
    resources={"cpu": 0.5, "memory_mib": 256, "disk_gib": 1},
    ttl_s=600,
    provider_options={"trajectory": "s5-p1"},
)


def fields(result: Any) -> list[Any]:
    return [result.stdout, result.stderr, result.return_code, result.error_type]


async def main() -> dict[str, Any]:
    said: dict[str, Any] = {}
    async with AsyncSandbox({"tangram": {"task": "nemo-gym"}}) as sandbox:
        await sandbox.start(SPEC)
        said["command"] = fields(await sandbox.exec("cat data/a.txt; printf $GREETING >&2; pwd; exit 3"))
        said["timeout"] = fields(await sandbox.exec("echo begun; while :; do :; done", timeout_s=0.5))
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "up").write_bytes(b"\0\xff")
            await sandbox.upload(Path(directory) / "up", "/tmp/up")
            await sandbox.download("/tmp/up", Path(directory) / "down" / "file")
            said["file"] = list((Path(directory) / "down" / "file").read_bytes())
        said["running"] = (await sandbox.status()).value
        id = sandbox._handle.sandbox_id
        async with AsyncTangram() as client:
            info = (await client.get_environment(id)).info
            said["sizes"] = [info.trajectory, info.memory_mib, info.disk_mib, info.idle_ttl_s]
            await client.end_environment(info.id)
        said["lost"] = fields(await sandbox.exec("true"))
        said["stopped"] = (await sandbox.status()).value
    return said


def run_blocking() -> list[Any]:
    sandbox = Sandbox({"tangram": {}})
    sandbox.start(SandboxSpec(image="agent"))
    try:
        return fields(sandbox.exec("echo $((6 * 7))"))
    finally:
        sandbox.stop()


said = asyncio.run(main())
said["blocking"] = run_blocking()
try:
    asyncio.run(AsyncSandbox({"tangram": {}}).start(SandboxSpec(image="no-such-template")))
except RuntimeError as error:
    said["refused"] = [type(error).__name__, str(error)]
print(json.dumps(said))
