"""Other ways to a sandbox, measured beside ours: E2B's client, a SWE-ReX server, and `podman run`."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from arl_bench.harness.bench_system import BenchSystem
from arl_bench.rewards.peer_servers import install_packages
from arl_wire.errors import Unavailable

__all__ = ["e2b_command_ms", "podman_run_ms", "swerex_create_ms"]

E2B_PACKAGES = ("e2b==2.63.0",)
SWEREX_PACKAGES = ("swe-rex==1.4.0",)
E2B_PROGRAM = """
import json, sys, time
from e2b import Sandbox

sandbox = Sandbox.create()
try:
    sandbox.commands.run("true")
    took = []
    for _ in range(int(sys.argv[1])):
        began = time.monotonic()
        sandbox.commands.run("true")
        took.append(1000 * (time.monotonic() - began))
finally:
    sandbox.kill()
print(json.dumps(took))
"""
"""Times commands of one sandbox. Address and key are in the variables that E2B's client reads."""
START_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 600.0
POLL_INTERVAL_S = 0.05
PODMAN_LIMIT = 1024
"""Open files and processes of a container; enough for `true`, and below the limits of any caller."""


def e2b_command_ms(system: BenchSystem, directory: Path, count: int) -> list[float]:
    """Return the milliseconds of commands of E2B's client against this system. Raises `Unavailable`."""
    python = install_packages("e2b", E2B_PACKAGES, directory)
    url, key = system.service_url("gateway"), (system.directory / "api_key").read_text().strip()
    variables = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": "e2b_" + key.removeprefix("tk_")}
    command = [str(python), "-c", E2B_PROGRAM, str(count)]
    ran = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if ran.returncode:
        raise Unavailable(f"E2B's client failed: {ran.stderr.strip()[-300:]}")
    return list(map(float, json.loads(ran.stdout)))


def swerex_create_ms(directory: Path, count: int) -> list[float]:
    """Return the milliseconds to open a session of a SWE-ReX server and run its first command. Raises `Unavailable`.

    The server runs on this machine without isolation. Its sessions are shells, not environments of their own.
    """
    python = install_packages("swerex", SWEREX_PACKAGES, directory)
    took = []
    with _swerex_server(python) as (url, headers), httpx.Client(timeout=START_TIMEOUT_S, headers=headers) as client:
        for number in range(count):
            began = time.monotonic()
            session = {"session": f"s{number}", "session_type": "bash", "startup_source": [], "startup_timeout": 10}
            client.post(f"{url}/create_session", json=session).raise_for_status()
            action = {"action_type": "bash", "command": "true", "session": f"s{number}", "timeout": 10}
            client.post(f"{url}/run_in_session", json=action).raise_for_status()
            took.append(1000 * (time.monotonic() - began))
            client.post(f"{url}/close_session", json={"session": f"s{number}", "session_type": "bash"})
    return took


@contextmanager
def _swerex_server(python: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    options = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
    process = subprocess.Popen(
        [str(python), "-m", "swerex.server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url, headers = f"http://127.0.0.1:{port}", {"X-API-Key": token}
    try:
        ends_at = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < ends_at:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/is_alive", headers=headers, timeout=5.0).is_success:
                    break
            time.sleep(POLL_INTERVAL_S)
        else:
            raise Unavailable("the SWE-ReX server did not start")
        yield url, headers
    finally:
        process.kill()
        process.wait()


def podman_run_ms(count: int) -> list[float]:
    """Return the milliseconds of `podman run` of `true` on an overlay of this machine's files. Raises `Unavailable`."""
    podman = shutil.which("podman")
    if podman is None:
        raise Unavailable("podman is not installed")
    runtime = shutil.which("runc")
    # Without CAP_SYS_RESOURCE, podman cannot raise the limits of this process.
    ulimits = [f"--ulimit={name}={PODMAN_LIMIT}:{PODMAN_LIMIT}" for name in ("nofile", "nproc")]
    command = [podman, *(["--runtime", runtime] if runtime else []), "run", "--rm", *ulimits]
    command += ["--network", "none", "--rootfs", "/:O", "true"]
    took = []
    for _ in range(count + 1):
        began = time.monotonic()
        ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        took.append(1000 * (time.monotonic() - began))
        if ran.returncode:
            raise Unavailable(f"podman run failed: {ran.stderr.strip()[-300:]}")
    return took[1:]
