"""The part of the Ray engine that runs in the cluster's Python. It imports only the standard library and Ray.

`python cluster_driver.py --namespace N` connects to the cluster, then answers requests: one JSON object per line on
standard input, one answer per line on standard output. It ends with its standard input. The actors are detached, so
they outlive it. Ray copies the class `NodeAgent` to the Ray nodes, which need no file of this project for it.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["NodeAgent", "RayCluster", "main"]

DESCRIBE_S = 1.0
"""Seconds to wait for the answers of all actors. One that is late is asked no second time until it has answered."""


class NodeAgent:
    """Keeps the process of one node running on this machine, and stops it with itself. It is a Ray actor."""

    STABLE_AFTER_S = 30.0
    """Seconds after which an exit no longer counts as one soon after the start."""
    FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
    """Seconds before a restart: after the first exit, and at most."""
    MAX_OUTPUT_BYTES = 1 << 20

    def __init__(self, spec: dict[str, Any]) -> None:
        """Start the process.

        Args:
            spec: `directory` of the node (`~` is that of this machine), `argv` and `env` of its process, and `purge`,
                the command that removes its state. `DIRECTORY` in a command stands for the directory.
        """
        self._directory = Path(spec["directory"]).expanduser()
        self._argv = [word.replace("DIRECTORY", str(self._directory)) for word in spec["argv"]]
        self._purge = [word.replace("DIRECTORY", str(self._directory)) for word in spec["purge"]]
        self._env = self._environment(dict(os.environ), spec["env"])
        self._output = self._directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._restarts, self._reason = 0, ""
        # The process ends with the thread that started it, so one thread starts all processes.
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def describe(self) -> dict[str, Any]:
        """Return the state of the process."""
        process = self._process
        is_running = process is not None and process.poll() is None
        state = "running" if is_running else "starting"
        if self._stopping.is_set():
            state = "stopping" if self._thread.is_alive() else "ended"
        return {
            "state": state,
            "pid": process.pid if process is not None and is_running else None,
            "restarts": self._restarts,
            "reason": self._reason,
        }

    def stop(self, deadline_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the deadline; then remove the node's directory. Does not wait."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
            process = self._process
        if process is not None:
            process.terminate()
            threading.Thread(target=self._kill_after, args=(process, deadline_s), daemon=True).start()

    def _kill_after(self, process: "subprocess.Popen[bytes]", deadline_s: float) -> None:
        """Kill the process at the deadline, if its thread has not seen its end."""
        self._thread.join(deadline_s)
        if self._thread.is_alive():
            process.kill()

    def logs(self, tail: int) -> str:
        """Return the last lines of the output."""
        try:
            with self._output.open("rb") as file:
                file.seek(max(0, self._output.stat().st_size - 400 * tail))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-tail:])
        except OSError:
            return ""

    @staticmethod
    def _environment(own: dict[str, str], given: dict[str, str]) -> dict[str, str]:
        """Return the environment of a node: not that of Ray and of the cluster's Python, and no GPU list of Ray's
        that is empty only because the actor has none."""
        left = {
            name: value
            for name, value in own.items()
            if not name.startswith(("RAY_", "PYTHON", "TANGRAM_", "VIRTUAL_ENV"))
            and (name != "CUDA_VISIBLE_DEVICES" or value)
        }
        return {**left, **given}

    def _keep(self) -> None:
        """Start the process again whenever it ends, after a delay that grows while it keeps ending soon."""
        quick_exits = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            self._run()
            if self._stopping.is_set():
                break
            self._restarts += 1
            quick_exits = 0 if time.monotonic() - started > self.STABLE_AFTER_S else quick_exits + 1
            self._stopping.wait(min(self.MAX_DELAY_S, self.FIRST_DELAY_S * 2.0 ** min(max(quick_exits - 1, 0), 20)))
        try:
            subprocess.run(self._purge, env=self._env, stdin=subprocess.DEVNULL, check=True, timeout=60)
            shutil.rmtree(self._directory)
        except (OSError, subprocess.SubprocessError) as error:
            self._reason = f"{self._directory} cannot be removed: {error}"

    def _run(self) -> None:
        """Run the process until it ends."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._output.exists() and self._output.stat().st_size > self.MAX_OUTPUT_BYTES:
                os.truncate(self._output, 0)
            with open(os.open(self._output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as output, self._lock:
                if self._stopping.is_set():
                    return
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._env,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=self._death_signal(),
                )
            self._process.wait()
            self._reason = f"its process ended: {self.logs(1)}".strip()[:300]
        except (OSError, subprocess.SubprocessError) as error:
            self._reason = f"its process cannot be started: {error}"[:300]

    @staticmethod
    def _death_signal() -> Callable[[], None]:
        """Return a function for the child: it gets SIGTERM when this process dies."""
        prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

        def arrange() -> None:
            """Ask for the signal. If the parent is dead by now, end at once."""
            prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

        return arrange


class RayCluster:
    """The agents of one namespace of a Ray cluster."""

    def __init__(self, ray: Any, namespace: str) -> None:
        """Use the connected module `ray`."""
        self._ray = ray
        self._namespace = namespace
        self._handles: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        """Descriptions that were asked for, by actor."""
        self._agent = ray.remote(NodeAgent)

    def status(self) -> dict[str, Any]:
        """Return the live Ray nodes, and what each agent says. An agent that does not answer in time has the state
        `silent`."""
        nodes = [
            {"id": node["NodeID"], "resources": node.get("Resources") or {}}
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        names = set(self._ray.util.list_named_actors())
        for gone in (self._handles.keys() | self._pending.keys()) - names:
            self._forget(gone)
        agents: dict[str, Any] = {name: {"state": "silent"} for name in names}
        for name in names - self._pending.keys():
            with self._silent_if_failed(name, agents):
                self._pending[name] = self._handle(name).describe.remote()
        asked = {ref: name for name, ref in self._pending.items()}
        ready = self._ray.wait(list(asked), num_returns=len(asked), timeout=DESCRIBE_S)[0] if asked else []
        for ref in ready:
            name = asked[ref]
            del self._pending[name]
            with self._silent_if_failed(name, agents):
                agents[name] = self._ray.get(ref)
        return {"nodes": nodes, "agents": agents}

    def start(self, agent: str, node_id: str, resources: dict[str, float], gpus: float, spec: dict[str, Any]) -> None:
        """Create an agent on a Ray node, if it does not exist yet. Does not wait for its start."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._handles[agent] = self._agent.options(
            name=agent,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            num_gpus=gpus,
            resources=resources,
            max_restarts=-1,
            scheduling_strategy=strategy(node_id=node_id, soft=False),
        ).remote(spec)

    def stop(self, agent: str, deadline_s: float) -> None:
        """Ask an agent to stop its node. Does not wait."""
        self._handle(agent).stop.remote(deadline_s)

    def kill(self, agent: str) -> None:
        """Kill an agent for good. Its node gets SIGTERM."""
        self._ray.kill(self._handle(agent), no_restart=True)
        self._forget(agent)

    def logs(self, agent: str, tail: int) -> str:
        """Return the last lines of a node's output."""
        return str(self._ray.get(self._handle(agent).logs.remote(tail), timeout=5))

    def request(self, resource: str, count: int) -> None:
        """Tell Ray's autoscaler the absolute number of nodes. It replaces the last request of every other caller."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{resource: 1}] * count)

    @contextmanager
    def _silent_if_failed(self, name: str, agents: dict[str, Any]) -> Iterator[None]:
        """Give an agent that fails the state `silent` and the reason, and look it up again next time."""
        try:
            yield
        except (self._ray.exceptions.RayError, ValueError) as error:
            agents[name] = {"state": "silent", "reason": str(error).strip().splitlines()[0][:300]}
            self._forget(name)

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            self._handles[name] = self._ray.get_actor(name)
        return self._handles[name]

    def _forget(self, name: str) -> None:
        self._handles.pop(name, None)
        self._pending.pop(name, None)


def main() -> int:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="auto", help="address of the cluster")
    parser.add_argument("--namespace", required=True, help="namespace of the actors")
    chosen = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of Ray must not be taken for answers

    def answer(**values: Any) -> None:
        """Write one answer."""
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        import ray
        import ray.util.scheduling_strategies

        ray.init(address=chosen.address, namespace=chosen.namespace, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds
        answer(error=f"{type(error).__name__}: {error}")
        return 1
    answer(result=ray.__version__)
    cluster = RayCluster(ray, chosen.namespace)
    requests = {name: getattr(cluster, name) for name in ("status", "start", "stop", "kill", "logs", "request")}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(result=requests[request.pop("do")](**request))
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds
            answer(error=f"{type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
