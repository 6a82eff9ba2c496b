"""Run the services of a compose file with Podman: each in its own container of one bridge network.

It sets every option that the file gives a service, so that rights, mounts and file systems are those of Compose. These
options differ: the restart policy and the log driver are left out, and published ports are free ones. Names of services
are entries of /etc/hosts, because Podman's bridge resolves names only with a further plugin.
"""

import asyncio
import json
import re
import resource
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, BinaryIO

from support.system import free_ports

__all__ = ["ComposeProject", "limits", "podman", "running_project"]

FIRST_HOST = 10
"""Number of the first service's address in the network; the first address is the gateway's."""
MAX_PROCESSES = 32_768
"""Podman lowers its own limit of processes to this value, and without CAP_SYS_RESOURCE a container cannot raise it."""
READY_S = 90.0
POLL_S = 0.2
SECURITY_OPTIONS = {"systempaths=unconfined": "unmask=ALL"}
"""Options that Podman spells differently."""

Service = Mapping[str, Any]


def podman(
    *arguments: str | Path, timeout_s: float = 120.0, check: bool = True, stdin: BinaryIO | int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    """Run Podman with runc: crun refuses machines that have cgroup v1 and v2 at once."""
    runtime = shutil.which("runc")
    command = ["podman", *(["--runtime", runtime] if runtime else []), *map(str, arguments)]
    done = subprocess.run(
        command, stdin=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done


@dataclass
class ComposeProject:
    """The containers, volumes and network of one compose file.

    `images` replaces images by those that are here. `replaced` overrides keys of services.
    """

    directory: Path
    services: Mapping[str, Service]
    images: Mapping[str, str]
    replaced: Mapping[str, Service] = field(default_factory=dict)
    network: IPv4Network = field(default_factory=lambda: _free_network())
    name: str = field(default_factory=lambda: f"tangram-test-{secrets.token_hex(4)}")
    published: dict[str, int] = field(default_factory=dict)

    def service(self, name: str) -> Service:
        return {**self.services[name], **self.replaced.get(name, {})}

    def run(self, name: str, *command: str) -> str:
        """Run another command in a new container of the service, like `docker compose run --rm --no-deps`."""
        service = {**self.service(name), "command": command}
        return podman("run", "--rm", *self._options(service), *self._image_and_command(service)).stdout

    def execute(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None, stdin: Path | None = None
    ) -> str:
        """Run a command in the running container of the service, like `docker compose exec -T`."""
        given = [f"--env={key}={value}" for key, value in (environment or {}).items()]
        if stdin is None:
            return podman("exec", *given, self._container(name), *command).stdout
        with stdin.open("rb") as file:
            return podman("exec", "--interactive", *given, self._container(name), *command, stdin=file).stdout

    async def start(self, name: str) -> None:
        """Start a service and wait until it is healthy, or has ended with code 0 if it has no health check."""
        service = self.service(name)
        address = self.network[FIRST_HOST + list(self.services).index(name)]
        own = ["--detach", "--name", self._container(name), "--hostname", name, "--ip", str(address)]
        own += [f"--publish={self._port(each)}" for each in service.get("ports", ())]
        await asyncio.to_thread(podman, "run", *own, *self._options(service), *self._image_and_command(service))
        async with asyncio.timeout(READY_S):
            while not await asyncio.to_thread(self._is_done, name, service):
                await asyncio.sleep(POLL_S)

    def logs(self, name: str) -> str:
        done = podman("logs", self._container(name), check=False)
        return done.stdout + done.stderr

    def state(self, name: str) -> Mapping[str, Any]:
        """Return the container's state as Podman reports it."""
        state: dict[str, Any] = json.loads(podman("inspect", self._container(name)).stdout)[0]["State"]
        return state

    def stop(self, name: str) -> int:
        """Stop a service within its grace period and return its exit code."""
        grace_s = self.service(name).get("stop_grace_period", "10s").removesuffix("s")
        podman("stop", "--time", grace_s, self._container(name))
        return int(self.state(name)["ExitCode"])

    def remove(self) -> None:
        """Remove all containers, volumes and the network of the project."""
        label = f"label=project={self.name}"
        if containers := podman("ps", "--all", "--quiet", "--filter", label).stdout.split():
            podman("rm", "--force", "--time", "5", *containers)
        if volumes := podman("volume", "ls", "--quiet", "--filter", label).stdout.split():
            podman("volume", "rm", "--force", *volumes)
        podman("network", "rm", "--force", self.name)

    def _container(self, name: str) -> str:
        return f"{self.name}-{name}"

    def _is_done(self, name: str, service: Service) -> bool:
        state = self.state(name)
        if "healthcheck" not in service:
            assert state["Running"] or state["ExitCode"] == 0, self.logs(name)
            return not state["Running"]
        assert state["Running"], f"{name} has ended:\n{self.logs(name)}"
        kind, *test = service["healthcheck"]["test"]
        assert kind == "CMD"
        return podman("exec", self._container(name), *test, check=False).returncode == 0

    def _image_and_command(self, service: Service) -> list[str]:
        return [self.images[service["image"]], *service.get("command", ())]

    def _options(self, service: Service) -> list[str]:
        hosts = {name: self.network[FIRST_HOST + number] for number, name in enumerate(self.services)}
        return [
            f"--label=project={self.name}",
            f"--network={self.name}",
            *(f"--add-host={name}:{address}" for name, address in hosts.items()),
            *limits(),
            *_rights(service),
            *(f"--env={key}={_default(value)}" for key, value in service.get("environment", {}).items()),
            *(f"--volume={self._volume(each)}" for each in service.get("volumes", ())),
            *(f"--tmpfs={each}" for each in service.get("tmpfs", ())),
            *(f"--volume={self._secret(each)}" for each in service.get("secrets", ())),
        ]

    def _volume(self, entry: str) -> str:
        source, _, rest = entry.partition(":")
        if source.startswith("."):
            return f"{(self.directory / source).resolve()}:{rest}"
        if source.startswith("/"):
            return entry
        volume = f"{self.name}-{source}"
        if podman("volume", "exists", volume, check=False).returncode:
            podman("volume", "create", f"--label=project={self.name}", volume)
        return f"{volume}:{rest}"

    def _secret(self, entry: str | Mapping[str, str]) -> str:
        source, target = (entry, entry) if isinstance(entry, str) else (entry["source"], entry["target"])
        return f"{self.directory / source}:/run/secrets/{target}:ro"

    def _port(self, entry: str) -> str:
        address, _, target = entry.split(":")
        if target not in self.published:
            (self.published[target],) = free_ports(1)
        return f"{address}:{self.published[target]}:{target}"


@asynccontextmanager
async def running_project(project: ComposeProject, wanted: Sequence[str]) -> AsyncIterator[ComposeProject]:
    """Start the wanted services in the order that `depends_on` gives, and remove everything at the end."""
    podman("network", "create", "--subnet", str(project.network), project.name)
    try:
        done: set[str] = set()
        while left := [name for name in wanted if name not in done]:
            ready = [name for name in left if set(project.service(name).get("depends_on", {})) <= done]
            assert ready, f"{left} wait for services that are not started"
            for name in ready:
                await project.start(name)
            done |= set(ready)
        yield project
    finally:
        project.remove()


def limits() -> list[str]:
    """Return limits that a caller without CAP_SYS_RESOURCE can set."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if files == resource.RLIM_INFINITY or files > 1 << 20:
        files = 1 << 20
    processes = MAX_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, MAX_PROCESSES)
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]


def _rights(service: Service) -> list[str]:
    security = (SECURITY_OPTIONS.get(each, each) for each in service.get("security_opt", ()))
    return [
        *(["--user", service["user"]] if "user" in service else []),
        *(f"--group-add={each}" for each in service.get("group_add", ())),
        *(["--init"] if service.get("init") else []),
        *(["--privileged"] if service.get("privileged") else []),
        # Podman would mount writable directories of its own at /run, /tmp and /var/tmp.
        *(["--read-only", "--read-only-tmpfs=false"] if service.get("read_only") else []),
        *(f"--cap-drop={each}" for each in service.get("cap_drop", ())),
        *(f"--cap-add={each}" for each in service.get("cap_add", ())),
        *(f"--security-opt={each}" for each in security),
        *([f"--cgroupns={service['cgroup']}"] if "cgroup" in service else []),
        *([f"--shm-size={service['shm_size']}"] if "shm_size" in service else []),
    ]


def _default(value: str) -> str:
    """Replace `${NAME:-default}` by its default."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)


def _free_network() -> IPv4Network:
    """Return a random network: projects of several test runs can run at the same time."""
    return IPv4Network(f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(256)}.0/24")
