"""A node that joins the system of a benchmark, with its own state directory. It is removed at the end."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arl_bench.harness.bench_system import POLL_INTERVAL_S, START_TIMEOUT_S, BenchSystem, read_phase, stop_supervisor
from arl_wire.errors import Unavailable

__all__ = ["joined_node"]


@contextmanager
def joined_node(system: BenchSystem, *, driver: str = "namespaces", cores: int | None = None) -> Iterator[int]:
    """Run a node of the system, which must serve other machines. Yields the pid of the node's supervisor.

    Raises `Unavailable` with the last output of the node if it does not start.
    """
    create = [sys.executable, "-m", "arl_local.join.create", "--dir", str(system.directory)]
    created = json.loads(subprocess.run(create, check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory(prefix="tangram-bench-node-", ignore_cleanup_errors=True) as path:
        directory = Path(path)
        options = ["--driver", driver, *(("--cores", str(cores)) if cores else ())]
        with (directory / "up.log").open("wb") as words:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "arl_local.join",
                    "--dir",
                    path,
                    "--join",
                    created["url"],
                    *options,
                    "--until-eof",
                ],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                env={**os.environ, "TANGRAM_JOIN_TOKEN": created["token"]},
                start_new_session=True,
            )
        try:
            ends_at = time.monotonic() + START_TIMEOUT_S
            while read_phase(directory) != "ready":
                if process.poll() is not None or time.monotonic() > ends_at:
                    raise Unavailable(
                        (directory / "up.log").read_text(errors="replace").strip() or "the node did not start"
                    )
                time.sleep(POLL_INTERVAL_S)
            yield process.pid
        finally:
            stop_supervisor(process)
