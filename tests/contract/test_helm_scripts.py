"""Run the programs in the chart's folder `files` with a real Postgres and a fake API server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from arl_store.logins import role_url
from support.conditions import eventually
from support.kubernetes_secrets import FakeSecrets, serving_secrets
from support.postgres import PASSWORDS, Databases
from support.system import System, running_system

FILES = Path(__file__).parents[2] / "docker" / "helm" / "tangram" / "files"
CONFIG = {
    "prefix": "prod-tangram",
    "instance": "prod",
    "take_over": False,
    "nodes": {"cpu": {"pool": "big", "count": 3}, "api": {"pool": "default", "count": 1}},
}
NODE = "prod-tangram-cpu-1"

pytestmark = pytest.mark.slow


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[FakeSecrets]:
    with serving_secrets(tmp_path) as secrets:
        yield secrets


@pytest_asyncio.fixture
async def owner_url(databases: Databases) -> AsyncIterator[str]:
    url = await databases.empty("test_helm")
    yield url
    await databases.drop(url)


def provision(secrets: FakeSecrets, owner_url: str, state: str = "state") -> subprocess.CompletedProcess[str]:
    """Run the Job. Each pod of it has an empty directory for the state."""
    directory = secrets.account.parent
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "database").mkdir(exist_ok=True)
    (directory / "database" / "tangram_database_url").write_text(owner_url)
    shutil.rmtree(directory / state, ignore_errors=True)
    arguments = {"--config": directory / "config.json", "--state": directory / state}
    command = [sys.executable, FILES / "provision.py", "--service-account", secrets.account]
    environment = {
        "PATH": os.environ["PATH"],
        "TANGRAM_SECRETS_DIR": str(directory / "database"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(secrets.port),
    }
    command += [part for pair in arguments.items() for part in pair]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


async def node_program(secrets: FakeSecrets, *arguments: str, name: str = NODE) -> subprocess.CompletedProcess[str]:
    """Run `node.py` with the Secret of all CPU nodes as a volume."""
    directory = secrets.account.parent
    for each in ("all-secrets", "secrets"):
        (directory / each).mkdir(exist_ok=True)
    for key, content in secrets.content("prod-tangram-cpu").items():
        (directory / "all-secrets" / key).write_text(content)
    command = [sys.executable, FILES / "node.py", *arguments]
    command += ["--source", directory / "all-secrets", "--secrets", directory / "secrets"]
    environment = {"PATH": os.environ["PATH"], "TANGRAM_NODE_NAME": name}
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def settings_in(secrets: FakeSecrets, service: str) -> dict[str, str]:
    return {key.upper(): content for key, content in secrets.content(f"prod-tangram-{service}").items()}


class TestProvision:
    async def test_services_and_a_node_run_with_the_secrets_of_the_job(
        self, secrets: FakeSecrets, owner_url: str
    ) -> None:
        done = await asyncio.to_thread(provision, secrets, owner_url)
        assert done.returncode == 0, done.stderr
        assert (await node_program(secrets, "prepare")).returncode == 0
        own = secrets.account.parent / "secrets"
        overrides = {service: settings_in(secrets, service) for service in ("gateway", "admission", "scheduler")}
        overrides["cpu"] = {path.name.upper(): path.read_text() for path in own.iterdir()}
        overrides["cpu"]["TANGRAM_NODE_NAME"] = NODE
        async with running_system(owner_url, overrides=overrides) as system:
            key = secrets.content("prod-tangram-api-key")["api_key"]
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=system.url, headers=headers, timeout=60) as api:
                [node] = (await api.get("/v1/admin/nodes")).json()["items"]
                assert (node["name"], node["pool"], node["alive"]) == (NODE, "big", True)
                await drain_ends_after_the_running_action(api, secrets)
            token = secrets.content("prod-tangram-metrics")["token"]
            assert await scrape(system, token) == 200

    async def test_repeated_run_changes_no_secret(self, secrets: FakeSecrets, owner_url: str) -> None:
        assert provision(secrets, owner_url).returncode == 0
        first = {name: secrets.content(name) for name in secrets.objects}
        secrets.written.clear()
        assert provision(secrets, owner_url).returncode == 0
        assert {name: secrets.content(name) for name in secrets.objects} == first
        assert "prod-tangram-state" not in secrets.written

    async def test_job_without_the_state_does_not_lock_out_the_services(
        self, secrets: FakeSecrets, owner_url: str
    ) -> None:
        assert provision(secrets, owner_url).returncode == 0
        del secrets.objects["prod-tangram-state"]
        before = secrets.content("prod-tangram-gateway")
        done = provision(secrets, owner_url)
        assert done.returncode == 1
        assert "the database belongs to another installation" in done.stderr
        assert secrets.content("prod-tangram-gateway") == before

    async def test_state_is_stored_before_the_database_knows_it(self, secrets: FakeSecrets, owner_url: str) -> None:
        done = provision(secrets, "postgresql://tangram@127.0.0.1:1/tangram")
        assert done.returncode == 1
        assert "Postgres is not reachable" in done.stderr
        state = secrets.content("prod-tangram-state")
        assert provision(secrets, owner_url).returncode == 0
        assert secrets.content("prod-tangram-state") == state
        assert state["passwords.gateway"] in secrets.content("prod-tangram-gateway")["tangram_database_url"]

    async def test_job_that_may_not_write_a_secret_names_it_and_completes_when_it_runs_again(
        self, secrets: FakeSecrets, owner_url: str
    ) -> None:
        assert provision(secrets, owner_url).returncode == 0
        secrets.refused.add("prod-tangram-scheduler")
        done = provision(secrets, owner_url)
        assert done.returncode == 1
        assert "refuses to write the Secret prod-tangram-scheduler: 403 Forbidden" in done.stderr
        shown = done.stdout + done.stderr
        assert not [text for text in secrets.content("prod-tangram-state").values() if text in shown]
        secrets.refused.clear()
        assert provision(secrets, owner_url).returncode == 0

    async def test_secret_of_a_service_has_no_secret_of_another(self, secrets: FakeSecrets, owner_url: str) -> None:
        assert provision(secrets, owner_url).returncode == 0
        state = secrets.content("prod-tangram-state")
        seen = {name: json.dumps(secrets.content(f"prod-tangram-{name}")) for name in ("gateway", "admission", "cpu")}
        assert [name for name, text in seen.items() if state["tokens.scheduler"] in text] == []
        assert [name for name, text in seen.items() if state["tokens.nodes"] in text] == []
        assert state["passwords.admission"] not in seen["gateway"]


class TestDrain:
    async def test_drain_waits_for_postgres_until_the_deadline(self, secrets: FakeSecrets, tmp_path: Path) -> None:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "tangram_database_url").write_text("postgresql://n:secret@127.0.0.1:1/tangram")
        secrets.objects["prod-tangram-cpu"] = {"data": {}}
        started_at = time.monotonic()
        done = await node_program(secrets, "drain", "--deadline", "2")
        assert done.returncode == 1
        assert done.stderr == f"Postgres does not answer the node {NODE}: ConnectionRefusedError\n"
        assert time.monotonic() - started_at >= 2

    async def test_node_with_the_credentials_of_its_kind_stops_without_a_drain(
        self, secrets: FakeSecrets, tmp_path: Path, database: str
    ) -> None:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "tangram_database_url").write_text(role_url(database, "cpu", PASSWORDS["cpu"]))
        secrets.objects["prod-tangram-cpu"] = {"data": {}}
        done = await node_program(secrets, "drain", "--deadline", "30")
        assert (done.returncode, done.stderr.split(":")[0]) == (0, "this node may not drain itself")


class TestPrepare:
    async def test_pod_gets_the_credentials_of_its_own_node_only(self, secrets: FakeSecrets, owner_url: str) -> None:
        assert provision(secrets, owner_url).returncode == 0
        done = await node_program(secrets, "prepare")
        assert done.returncode == 0, done.stderr
        own = {path.name: path.read_text() for path in (secrets.account.parent / "secrets").iterdir()}
        everything = secrets.content("prod-tangram-cpu")
        assert own == {key.removeprefix(f"{NODE}."): text for key, text in everything.items() if f"{NODE}." in key}
        assert set(own) == {
            *("tangram_database_url", "tangram_service_token", "tangram_caller_keys"),
            *("tangram_metrics_token_hash", "tangram_credential_id"),
        }

    async def test_pod_without_credentials_says_what_to_raise(self, secrets: FakeSecrets, owner_url: str) -> None:
        assert provision(secrets, owner_url).returncode == 0
        done = await node_program(secrets, "prepare", name="prod-tangram-cpu-3")
        assert done.returncode == 1
        assert "no credentials of prod-tangram-cpu-3: raise maxReplicas" in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_launcher_is_in_a_leaf_below_the_cgroup_of_its_container(tmp_path: Path) -> None:
    """A mount namespace with a hierarchy of version 2 at /sys/fs/cgroup is the container."""
    group = f"helm-{os.getpid()}"
    inside = (
        f"sh {FILES / 'launcher.sh'} privileged sh -c 'tail -n 1 /proc/self/cgroup; cat /sys/fs/cgroup/cgroup.procs'"
    )
    container = (
        "set -e; umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup;"
        f" mkdir {group}; sh -c 'echo $$ >{group}/cgroup.procs; exec {inside.replace(chr(39), chr(34))}';"
        f" rmdir {group}/launcher {group}"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", container], capture_output=True, text=True, check=False)
    if "umount" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"this machine lets root mount no cgroup hierarchy: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "0::/launcher\n"), done.stderr


async def drain_ends_after_the_running_action(api: httpx.AsyncClient, secrets: FakeSecrets) -> None:
    """Drain by the pod's own program, as its preStop hook does, and start the pod again."""
    body = {"task": "t", "argv": ["sleep", "2"]}
    action = (await api.post("/v1/actions", json=body)).json()
    path = f"/v1/actions/{action['id']}"

    async def state_is_running() -> bool:
        return bool((await api.get(path)).json()["state"] == "running")

    await eventually(state_is_running, timeout_s=20)
    done = await node_program(secrets, "drain", "--deadline", "30")
    assert done.returncode == 0, done.stderr
    settled = (await api.get(path)).json()
    assert (settled["state"], settled["outcome"]) == ("settled", "ok")
    [node] = (await api.get("/v1/admin/nodes")).json()["items"]
    assert (node["cordoned"], node["drained"]) == (True, True)
    assert (await node_program(secrets, "prepare")).returncode == 0
    [node] = (await api.get("/v1/admin/nodes")).json()["items"]
    assert (node["cordoned"], node["drained"]) == (False, False)


async def scrape(system: System, token: str) -> int:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as client:
        return (await client.get(f"{system.url_of('scheduler')}/metrics")).status_code
