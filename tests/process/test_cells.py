"""Test two cells behind a router: two whole systems by `tangram up --cell`, one of which loses its Postgres."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from arl_local.state_dir import bind
from arl_tangram import Action, AsyncTangram, Tangram, Unavailable
from arl_tangram.cli.local_state import LocalState
from arl_wire.cells import cell_of
from support.conditions import eventually
from support.machine import Machine

pytestmark = pytest.mark.slow

SMALL = {"cpu": 0.1, "memory_mib": 32, "disk_mib": 8}
FAR_S = 60.0


@dataclass(frozen=True)
class Cells:
    machines: dict[int, Machine]
    url: str
    key: str
    scratch: Path

    def client(self, **options: Any) -> Tangram:
        return Tangram(self.url, self.key, **options)

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command that knows only the address of the router."""
        outside = Machine(self.scratch / "outside")
        return outside.cli(*arguments, check=check, variables={"TANGRAM_URL": self.url, "TANGRAM_API_KEY": self.key})

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=FAR_S)

    def trajectory_in(self, cell: int, api: Tangram) -> str:
        """Return a trajectory that lives in the cell."""
        return next(
            name
            for name in (f"of-{cell}-{number}" for number in range(64))
            if cell_of(api.run(task="t", trajectory=name, argv=["true"], **SMALL).id) == cell
        )

    async def state_of(self, cell: int) -> bool:
        async with self.http() as api:
            items = (await api.get("/v1/cells")).json()["items"]
        return bool(next(item["up"] for item in items if item["cell"] == cell))

    async def wait_state(self, cell: int, *, up: bool) -> None:
        async def is_reached() -> bool:
            return await self.state_of(cell) is up

        await eventually(is_reached, timeout_s=FAR_S)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    directory = tmp_path_factory.mktemp("cells")
    machines = {number: Machine(directory / str(number)) for number in (1, 2)}
    try:
        for number, machine in machines.items():
            if number > 1:  # one key for all cells
                machine.directory.mkdir(mode=0o700)
                shutil.copy(machines[1].directory / "api_key", machine.directory)
            machine.cli("up", "-d", "--unsafe-local", "--cores", "2", "--cell", str(number))
        key = (machines[1].directory / "api_key").read_text().strip()
        with a_router(machines) as url:
            yield Cells(machines, url, key, directory)
    finally:
        for machine in machines.values():
            machine.cli("down", "--purge", check=False)


@contextmanager
def a_router(machines: dict[int, Machine]) -> Iterator[str]:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    named = [
        f"{number}={LocalState(machine.directory).service_urls()['gateway']}" for number, machine in machines.items()
    ]
    options = [word for each in named for word in ("--cell", each)]
    command = [sys.executable, "-m", "arl_tangram.cli", "router", *options, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")}
    router = subprocess.Popen(command, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(eventually(lambda: is_ready(url), timeout_s=FAR_S))
        yield url
    finally:
        router.terminate()
        router.wait(FAR_S)


def is_ready(url: str) -> bool:
    try:
        items = httpx.get(f"{url}/v1/cells").json()["items"]
    except httpx.TransportError:
        return False
    return all(item["up"] for item in items)


def cells_of(ids: list[UUID]) -> Counter[int]:
    return Counter(cell_of(id) for id in ids)


def test_trajectories_are_spread_and_their_actions_stay_together(cells: Cells) -> None:
    with cells.client() as api:
        made = {
            name: [api.run(task="spread", trajectory=name, argv=["echo", name], **SMALL) for _ in range(2)]
            for name in map(str, range(8))
        }
        assert set(cells_of([action.id for pair in made.values() for action in pair])) == {1, 2}
        assert all(cell_of(first.id) == cell_of(second.id) for first, second in made.values())
        assert [pair[0].stdout for pair in made.values()] == [f"{name}\n" for name in made]


def test_batch_spans_cells_and_its_results_have_the_order_of_the_request(cells: Cells) -> None:
    with cells.client() as api:
        found = api.run_many([{"argv": ["echo", str(n)]} for n in range(12)], task="batch", **SMALL)
        assert [action.stdout for action in found] == [f"{n}\n" for n in range(12)]
        assert set(cells_of([action.id for action in found])) == {1, 2}
        listed = api.list(task="batch")
        assert [action.id for action in listed] == sorted((action.id for action in found), reverse=True)
        assert all(action.ok for action in api.as_completed([action.id for action in found]))


async def test_repeated_batch_submits_nothing_twice(cells: Cells) -> None:
    batch = {"actions": [{"task": "again", "argv": ["true"], "demand": {"cpu": 0.1}} for _ in range(8)]}
    async with cells.http() as api:
        answers = [
            (await api.post("/v1/actions:batch", json=batch, headers={"idempotency-key": "k"})).json() for _ in range(2)
        ]
        assert answers[0] == answers[1]
        listed = (await api.get("/v1/actions", params={"task": "again", "limit": 3})).json()
        assert (len(listed["items"]), "next_cursor" in listed) == (3, True)
    with cells.client() as sdk:
        assert {str(action.id) for action in sdk.list(task="again")} == {item["id"] for item in answers[0]["items"]}


def test_environment_and_all_that_comes_from_it_stay_in_its_cell(cells: Cells) -> None:
    seen = set()
    with cells.client() as api:
        for _ in range(12):
            with api.environment(task="env", files={"a.txt": "text"}, memory_mib=32, disk_mib=8) as environment:
                cell = cell_of(environment.id)
                seen.add(cell)
                action = environment.run(argv=["cat", "a.txt"])
                saved = environment.snapshot()
                by_name = api.run(
                    task="env",
                    trajectory=environment.info.trajectory,
                    argv=["cat", "a.txt"],
                    memory_mib=32,
                    disk_mib=8,
                )
                with api.environment(task="env", snapshot=saved.id) as copy:
                    assert copy.files.read("a.txt") == b"text"
                    ids = [action.id, saved.id, by_name.id, copy.id]
            assert (set(cells_of(ids)), by_name.stdout) == ({cell}, "text")
            if seen == {1, 2}:
                break
    assert seen == {1, 2}


def test_command_line_works_through_the_router(cells: Cells) -> None:
    done = cells.cli("submit", "--", "sh", "-c", "echo out; exit 3", check=False)
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert len(json.loads(cells.cli("nodes", "list", "-o", "json").stdout)["items"]) == 4
    cells.cli("queues", "pause", "spread")
    assert ["spread" in paused_in(machine) for machine in cells.machines.values()] == [True, True]
    cells.cli("queues", "pause", "cli")  # only one cell has run an action of this task
    assert ["cli" in paused_in(machine) for machine in cells.machines.values()] == [True, True]
    cells.cli("queues", "resume", "cli")
    unknown = cells.cli("queues", "pause", "unknown", check=False)
    assert (unknown.returncode, "has no queue" in unknown.stderr) == (2, True)
    refused = cells.cli("capacity", check=False)
    assert (refused.returncode, "`tangram --cell NUMBER`" in refused.stderr) == (2, True)
    assert "cores" in cells.cli("--cell", "2", "capacity").stdout
    cells.cli("queues", "resume", "spread")


def paused_in(machine: Machine) -> set[str]:
    """Return the tasks whose queue is paused in a cell."""
    items = json.loads(machine.cli("queues", "list", "-o", "json").stdout)["items"]
    return {queue["task"] for queue in items if queue["paused"]}


def test_key_works_in_all_cells_until_it_is_revoked_in_all(cells: Cells) -> None:
    created = json.loads(cells.cli("keys", "create", "--scope", "actions:read", "-o", "json").stdout)
    headers = {"authorization": f"Bearer {created['key']}"}
    urls = [cells.url, *(LocalState(each.directory).service_urls()["gateway"] for each in cells.machines.values())]
    assert [httpx.get(f"{url}/v1/actions", headers=headers).status_code for url in urls] == [200] * 3
    cells.cli("keys", "revoke", created["prefix"])
    assert [httpx.get(f"{url}/v1/actions", headers=headers).status_code for url in urls] == [401] * 3


async def test_actions_of_the_other_cell_go_on_while_one_has_no_postgres(cells: Cells) -> None:
    with cells.client(retry_timeout_s=0.0) as api:
        names = {cell: cells.trajectory_in(cell, api) for cell in (1, 2)}
    before = {cell: machine.ready_pid_of("postgres") for cell, machine in cells.machines.items()}
    marks = cells.scratch / "marks"
    marks.mkdir()
    async with AsyncTangram(cells.url, cells.key, retry_timeout_s=FAR_S) as patient:
        begun = {
            cell: [
                (await patient.submit(task="t", trajectory=name, argv=marking(marks, f"{cell}-{number}"), **SMALL)).id
                for number in range(5)
            ]
            for cell, name in names.items()
        }
        await eventually(lambda: {path.name[0] for path in marks.iterdir()} == {"1", "2"}, timeout_s=FAR_S)
        async with no_postgres(cells.machines[2]):
            await cells.wait_state(2, up=False)
            await check_requests_of_cell_1(patient, names[1])
            await check_requests_of_cell_2(cells, names[2], begun[2][0])
            await check_requests_of_both_cells(cells, names, begun)
            waiting = asyncio.create_task(patient.wait([begun[1][0], begun[2][-1]], timeout_s=FAR_S))
            listed = cells.cli("list", "--task", "t")
            assert "cell 2 does not answer; its items are missing" in listed.stderr
            assert {cell_of(UUID(line.split()[0])) for line in listed.stdout.splitlines()[1:]} == {1}
        assert [action.outcome for action in await waiting] == ["ok", "ok"]
        await cells.wait_state(2, up=True)
        settled = await patient.wait([id for ids in begun.values() for id in ids], timeout_s=FAR_S)
    assert [action.outcome for action in settled] == ["ok"] * len(settled)
    ran = Counter(path.name.partition(".")[0] for path in marks.iterdir())
    assert ran == {f"{cell}-{number}": 1 for cell in (1, 2) for number in range(5)}
    assert cells.machines[1].ready_pid_of("postgres") == before[1]
    assert cells.machines[2].ready_pid_of("postgres") != before[2]
    for machine in cells.machines.values():
        assert "clean" in machine.cli("check").stdout


def marking(directory: Path, name: str) -> list[str]:
    """Return a command that leaves one file for each of its runs."""
    return ["sh", "-c", f"touch {directory}/{name}.$$; sleep 1"]


@asynccontextmanager
async def no_postgres(machine: Machine) -> AsyncIterator[None]:
    """Kill the Postgres of a system, and start it again at the end. Its supervisor is stopped meanwhile."""
    supervisor = LocalState(machine.directory).supervisor_pid()
    assert supervisor is not None
    postgres = machine.ready_pid_of("postgres")
    assert postgres is not None
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(postgres, signal.SIGKILL)
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


async def check_requests_of_cell_1(patient: AsyncTangram, trajectory: str) -> None:
    """Its actions run, and none waits for the other cell."""
    for _ in range(5):
        at = time.monotonic()
        action: Action = await patient.run(task="t", trajectory=trajectory, scope="ephemeral", argv=["true"], **SMALL)
        assert (action.ok, cell_of(action.id)) == (True, 1)
        assert time.monotonic() - at < 10


async def check_requests_of_cell_2(cells: Cells, trajectory: str, action: UUID) -> None:
    """They get 503 at once, with the name of the cell."""
    wanted = {"task": "t", "trajectory": trajectory, "argv": ["true"]}
    async with cells.http() as api:
        at = time.monotonic()
        answers = [await api.post("/v1/actions", json=wanted), await api.get(f"/v1/actions/{action}?wait=30")]
        assert time.monotonic() - at < 5
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "cell_unavailable")
        assert answer.json()["detail"].startswith("cell 2 does not answer")
        assert int(answer.headers["retry-after"]) >= 1
    with cells.client(retry_timeout_s=0.0) as sdk, pytest.raises(Unavailable, match="cell 2 does not answer"):
        sdk.get(action)


async def check_requests_of_both_cells(cells: Cells, names: dict[int, str], begun: dict[int, list[UUID]]) -> None:
    """The part of cell 1 is served; that of cell 2 is refused, pending or missing, and named."""
    actions = [{"task": "t", "trajectory": names[cell], "argv": ["true"]} for cell in (2, 1, 2)]
    ids = [str(begun[cell][0]) for cell in (1, 2)]
    async with cells.http() as api:
        batch = await api.post("/v1/actions:batch", json={"actions": actions})
        waited = await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 0.5})
        first = await api.post("/v1/actions:wait", json={"ids": ids, "until": "any", "timeout_s": 30})
        listed = await api.get("/v1/actions", params={"task": "t"})
        change = await api.patch("/v1/admin/queues/t", json={"weight": 2})
    problems = [item.get("problem", {}).get("code") for item in batch.json()["items"]]
    assert (batch.status_code, problems) == (202, ["cell_unavailable", None, "cell_unavailable"])
    for answer in (waited, first):
        assert [action["id"] for action in answer.json()["settled"]] == ids[:1]
        assert answer.json()["pending"] == ids[1:]
    assert (waited.headers["tangram-missing-cells"], listed.headers["tangram-missing-cells"]) == ("2", "2")
    assert (change.status_code, "nothing was changed" in change.json()["detail"]) == (503, True)
