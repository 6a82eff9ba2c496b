"""Test that another machine joins a system with one command, and that a removed node's credentials open nothing."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from arl_kit.service_tokens import TokenIssuer, joined_caller
from arl_local.join.credentials import JoinedNode
from arl_local.join.join_token import JoinToken
from arl_local.state_dir import bind
from support.conditions import eventually
from support.machine import Machine
from support.reachable_python import STRANGER, a_reachable_python, an_open_directory

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "add-a-machine.md"
BLOCK = re.compile(r'```bash title="(control|other) machine"\n(.*?)```', re.DOTALL)
TIMEOUT_S = 120.0
CONTROL_ADDRESS, WORKER_ADDRESS = "10.0.0.1", "10.0.0.2"


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[Machine, Machine]]:
    """Start a system with simulated cores and a node `n` that joined it; stop both at the end."""
    control, node = Machine(directory / "control"), Machine(directory / "node")
    control.cli("up", "--detach", "--driver", "simulated", "--cores", "2", "--listen", "127.0.0.1")
    try:
        joined = json.loads(control.cli("nodes", "join-token", "create", "--name", "n", "-o", "json").stdout)
        arguments = ("--driver", "simulated", "--cores", "4", "--join", joined["url"])
        node.cli("node", "up", "-d", *arguments, variables={"TANGRAM_JOIN_TOKEN": joined["token"]})
        yield control, node
    finally:
        node.cli("node", "down", "--now", check=False)
        control.cli("down", "--purge")


def states(control: Machine) -> dict[str, str]:
    lines = control.cli("nodes", "list").stdout.splitlines()[1:]
    return {cells[0]: cells[3] for line in lines if (cells := line.split()) and cells[1] == "cpu"}


def drive(control: Machine, node: str) -> None:
    """Let other nodes take no work, and run an action on `node`."""
    for name in states(control).keys() - {node}:
        control.cli("nodes", "cordon", name)
    action = json.loads(control.cli("submit", "-o", "json", "--", "true").stdout)
    assert (action["outcome"], action["node"]) == ("ok", node)


def status_of(method: str, url: str, **arguments: Any) -> int:
    return httpx.request(method, url, **arguments).status_code


async def test_node_runs_actions_drains_stops_and_starts_again(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (control, node):
        drive(control, "n")
        assert "drained and stopped" in node.cli("node", "down", "--deadline", "5").stderr
        assert states(control)["n"] in ("drained", "lost")
        said = node.cli("node", "up", "-d", "--driver", "simulated", "--cores", "4").stdout
        assert "node n of http://127.0.0.1:" in said
        drive(control, "n")
        listed = json.loads(control.cli("nodes", "list", "-o", "json").stdout)["items"]
        assert {each["name"]: each["pool"] for each in listed}["n"] == "default"
        secrets = json.loads((node.directory / "node.json").read_text())["secrets"]
        logs = "".join(path.read_text() for path in (node.directory / "logs").glob("*.log"))
        assert not [secret for name, secret in secrets.items() if name != "credential_id" and secret in logs]
        assert (node.directory / "node.json").stat().st_mode & 0o077 == 0


async def test_used_foreign_and_expired_tokens_are_refused_with_the_reason(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (control, _):
        other = Machine(tmp_path / "other")
        created = json.loads(control.cli("nodes", "join-token", "create", "--ttl", "1s", "-o", "json").stdout)
        expired_at = time.monotonic() + 1.5
        foreign = other.cli("node", "up", "--join", created["url"], "--token", str(JoinToken.generate()), check=False)
        assert (foreign.returncode, "does not know the join token" in foreign.stderr) == (1, True)
        await eventually(lambda: time.monotonic() > expired_at)
        expired = other.cli("node", "up", "--join", created["url"], "--token", created["token"], check=False)
        assert "expired at" in expired.stderr
        joined = json.loads(control.cli("nodes", "join-token", "create", "-o", "json").stdout)
        token = JoinToken.parse(joined["token"])
        headers = {"authorization": token.authorization, "idempotency-key": "00000000-0000-4000-8000-000000000001"}
        assert status_of("POST", f"{joined['url']}/v1/nodes/join", headers=headers) == 200
        again = other.cli("node", "up", "--join", joined["url"], "--token", joined["token"], check=False)
        assert (again.returncode, "already used by 127.0.0.1" in again.stderr) == (1, True)
        malformed = other.cli("node", "up", "--join", joined["url"], "--token", "tk_key", check=False)
        assert (malformed.returncode, "no join token" in malformed.stderr) == (2, True)
        own = control.cli("node", "up", "--join", joined["url"], "--token", joined["token"], check=False)
        assert (own.returncode, "belongs to `tangram up`" in own.stderr) == (2, True)
        down = control.cli("node", "down", check=False)
        assert (down.returncode, "stop it with `tangram down`" in down.stderr) == (2, True)


async def test_credentials_of_a_removed_node_open_nothing(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (control, node):
        joined = JoinedNode.load(node.directory)
        assert joined is not None
        session = await asyncpg.connect(joined.database_url_in(node.directory))
        issuer = TokenIssuer(joined_caller("cpu", joined.secrets["credential_id"]), joined.secrets["service_token"])
        freed = {"fences": [], "requeued": [], "runs": []}

        def notify_scheduler() -> int:
            headers = {"authorization": f"Bearer {issuer.token_for('scheduler')}"}
            return status_of("POST", f"{joined.scheduler_url}/internal/freed", headers=headers, json=freed)

        assert notify_scheduler() == 204
        node.cli("node", "down", "--now")
        await eventually(lambda: states(control)["n"] == "lost", timeout_s=30)
        control.cli("nodes", "remove", "n")

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)):
            await session.fetchval("select count(*) from actions")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(joined.database_url_in(node.directory))
        await eventually(lambda: notify_scheduler() == 401, timeout_s=10)
        for secret in (joined.secrets["service_token"], issuer.token_for("gateway")):
            headers = {"authorization": f"Bearer {secret}"}
            assert status_of("GET", f"{joined.gateway_url}/v1/actions", headers=headers) == 401
        refused = node.cli("node", "up", "-d", check=False)
        assert (refused.returncode, "join again with a new token" in refused.stderr) == (1, True)


async def test_machine_joins_again_under_the_name_of_its_removed_node(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as (control, node):
        node.cli("node", "down", "--now")
        await eventually(lambda: states(control)["n"] == "lost", timeout_s=30)
        control.cli("nodes", "remove", "n")
        created = json.loads(control.cli("nodes", "join-token", "create", "--name", "n", "-o", "json").stdout)
        arguments = ("--driver", "simulated", "--cores", "4", "--join", created["url"], "--token", created["token"])
        node.cli("node", "up", "-d", *arguments)
        drive(control, "n")


@pytest.mark.parametrize("kind", ["gpu", "api"])
async def test_node_of_another_kind_joins_and_drains(tmp_path: Path, kind: str) -> None:
    variables = {"TANGRAM_ENDPOINTS": json.dumps({"a": {"url": "https://a.example"}})}
    with a_cluster(tmp_path) as (control, _):
        other = Machine(tmp_path / kind)
        create = ("nodes", "join-token", "create", "--kind", kind, "--name", kind, "-o", "json")
        created = json.loads(control.cli(*create).stdout)
        other.cli("node", "up", "-d", "--join", created["url"], "--token", created["token"], variables=variables)
        listed = json.loads(control.cli("nodes", "list", "-o", "json").stdout)["items"]
        assert {each["name"]: (each["kind"], each["alive"]) for each in listed}[kind] == (kind, True)
        assert "drained and stopped" in other.cli("node", "down", "--deadline", "5").stderr


async def test_ports_that_nodes_know_stay_the_same(tmp_path: Path) -> None:
    control = Machine(tmp_path / "control")
    up = ("up", "--detach", "--driver", "simulated", "--cores", "1")
    known = []
    try:
        for flags in (("--listen", "127.0.0.1"), (), ("--listen", "127.0.0.1")):
            urls = json.loads(control.cli(*up, *flags, "-o", "json").stdout)["endpoints"]
            known.append((urls["scheduler"], urls.get("database-relay")))
            control.cli("down")
        assert known[2] == known[0] != known[1]
        with bind("127.0.0.1", int(known[0][0].rpartition(":")[2])) as other:
            other.listen()
            refused = control.cli(*up, "--listen", "127.0.0.1", check=False)
        assert "of scheduler on 127.0.0.1 is taken, and the nodes know it" in refused.stderr
        for listen, said in (("192.0.2.9", "not an address of this machine"), ("", "must be an IP address")):
            wrong = control.cli(*up, "--listen", listen, "--network", "192.0.2.0/24", check=False)
            assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr
    finally:
        control.cli("down", "--purge", check=False)


@dataclass(frozen=True)
class Host:
    """A network namespace in which commands of one user run."""

    name: str
    directory: Path
    path: str
    user: tuple[str, ...] = ()

    def sh(self, command: str, *, replaced: Mapping[str, str] | None = None) -> str:
        for old, new in (replaced or {}).items():
            command = command.replace(old, new)
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *self.user, "bash", "-euc", command],
            env={"PATH": self.path, "HOME": str(self.directory), "TANGRAM_DIR": str(self.directory / "state")},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def two_hosts(directory: Path, python: str) -> Iterator[tuple[Host, Host]]:
    """Create two connected network namespaces. The second belongs to an ordinary user."""
    names = [f"tangram-{role}-{os.getpid()}" for role in ("control", "other")]
    bin_dir = Path(python).parent
    (bin_dir / "tangram").write_text(f'#!/bin/sh\nexec {python} -m arl_tangram.cli "$@"\n')
    (bin_dir / "tangram").chmod(0o755)
    path = f"{bin_dir}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    user = ("setpriv", f"--reuid={STRANGER.uid}", f"--regid={STRANGER.gid}", "--clear-groups")
    hosts = [Host(names[0], directory / "control", path), Host(names[1], directory / "other", path, user)]
    for host in hosts:
        host.directory.mkdir()
    os.chown(hosts[1].directory, STRANGER.uid, STRANGER.gid)
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        peer = ("type", "veth", "peer", "tangram0", "netns", names[1])
        subprocess.run(["ip", "link", "add", "tangram0", "netns", names[0], *peer], check=True)
        for name, address in zip(names, (CONTROL_ADDRESS, WORKER_ADDRESS), strict=True):
            for arguments in (("addr", "add", f"{address}/24", "dev", "tangram0"), ("link", "set", "tangram0", "up")):
                subprocess.run(["ip", "-n", name, *arguments], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create network namespaces")
async def test_page_add_a_machine_followed_literally_on_two_networks() -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    commands = [line for _, block in blocks for line in block.splitlines()]
    assert len(commands) <= 6
    with an_open_directory() as directory, two_hosts(directory, a_reachable_python(directory)) as (control, other):
        try:
            printed = ""
            for where, block in blocks:
                host = control if where == "control" else other
                token = re.search(r"tj_\S+", printed)
                printed = host.sh(block, replaced={"TOKEN": token[0]} if token is not None else None)
            action = json.loads(printed[printed.index("{") :])
            assert (action["outcome"], action["node"]) == ("ok", "worker-1")
            other.sh("tangram node down --deadline 10")
        finally:
            other.sh("tangram node down --now || true")
            control.sh("tangram down --purge")
