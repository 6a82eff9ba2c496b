"""The local engine with trivial processes in place of nodes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from arl_engines.engine import ClusterEngineError, EngineNodeState, NodeCommand, NodeRequest, PoolSpec
from arl_engines.local.local_engine import LocalEngine
from arl_local.state_dir import StateDir
from support.conditions import eventually, is_running

POOL = PoolSpec(name="p", max_nodes=3)
SLEEP = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"


class ScriptCommands:
    """Nodes that run a Python program."""

    def __init__(self, program: str = SLEEP) -> None:
        self.program = program
        self.requests: list[NodeRequest] = []

    async def command_for(self, request: NodeRequest) -> NodeCommand:
        self.requests.append(request)
        await asyncio.sleep(0)  # other engine objects run meanwhile
        return NodeCommand(argv=(sys.executable, "-S", "-c", self.program), env={"PATH": os.environ["PATH"]})


@pytest_asyncio.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "pools"
    for pid in pids_in(tmp_path / "pools").values():
        os.kill(pid, signal.SIGKILL)


def pids_in(directory: Path) -> dict[str, int]:
    found = {file.parent.name: json.loads(file.read_text())["pid"] for file in directory.glob("*/process.json")}
    return {name: pid for name, pid in found.items() if is_running(pid)}


async def states(engine: LocalEngine) -> dict[str, EngineNodeState]:
    return {node.name: node.state for node in await engine.nodes()}


async def test_ensure_is_absolute_and_never_stops_a_node(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands())
    for count in (2, 2, 1, 0):
        await engine.ensure(POOL, count)
        assert await states(engine) == dict.fromkeys(("p-1", "p-2"), EngineNodeState.RUNNING)
    await engine.ensure(PoolSpec(name="q"), 1)
    assert set(pids_in(directory)) == {"p-1", "p-2", "q-1"}


async def test_another_engine_object_finds_the_processes(directory: Path) -> None:
    await LocalEngine(directory, ScriptCommands()).ensure(POOL, 2)
    before, commands = pids_in(directory), ScriptCommands()
    later = LocalEngine(directory, commands)
    await later.ensure(POOL, 2)
    assert (pids_in(directory), commands.requests) == (before, [])
    await later.release("p-2", 30)
    await eventually(lambda: is_gone(later, "p-2"))


async def is_gone(engine: LocalEngine, name: str) -> bool:
    return name not in await states(engine)


async def test_ended_node_starts_again_under_its_name(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands())
    await engine.ensure(POOL, 1)
    (first,) = pids_in(directory).values()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not is_running(first))
    assert await states(engine) == {"p-1": EngineNodeState.STARTING}

    async def is_back() -> bool:
        await engine.ensure(POOL, 1)
        return bool(pids_in(directory))

    await eventually(is_back)
    (node,) = await engine.nodes()
    assert (node.name, node.restarts) == ("p-1", 1)
    assert pids_in(directory) != {"p-1": first}


async def test_names_are_not_used_twice(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands())
    await engine.ensure(POOL, 2)
    await engine.release("p-2", 30)
    await eventually(lambda: is_gone(engine, "p-2"))
    assert not (directory / "p-2").exists()
    await engine.ensure(POOL, 2)
    assert set(await states(engine)) == {"p-1", "p-3"}


async def test_released_node_counts_no_longer_and_is_killed_at_its_deadline(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands(STUBBORN))
    await engine.ensure(POOL, 1)
    await eventually(lambda: has_printed(directory / "p-1" / "output.log"))
    await engine.release("p-1", 0.2)
    await engine.ensure(POOL, 1)
    assert await states(engine) == {"p-1": EngineNodeState.STOPPING, "p-2": EngineNodeState.RUNNING}
    await eventually(lambda: is_gone(engine, "p-1"))


def has_printed(path: Path) -> bool:
    return path.exists() and "up" in path.read_text()


async def test_logs_are_the_end_of_the_output(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands())
    await engine.ensure(POOL, 1)
    await eventually(lambda: has_printed(directory / "p-1" / "output.log"))
    assert await engine.logs("p-1", 5) == "up"
    assert await engine.logs("unknown", 5) == ""


async def test_node_that_keeps_ending_is_started_less_and_less_often(directory: Path) -> None:
    commands = ScriptCommands("raise SystemExit('no sandbox')")
    engine = LocalEngine(directory, commands)

    async def has_ended_three_times() -> bool:
        await engine.ensure(POOL, 1)
        return len(commands.requests) >= 3

    await eventually(has_ended_three_times)
    (node,) = await engine.nodes()
    assert "no sandbox" in node.reason
    starts = len(commands.requests)
    await eventually(lambda: not pids_in(directory))
    await engine.ensure(POOL, 1)
    assert len(commands.requests) == starts


async def test_two_engine_objects_do_not_start_nodes_at_the_same_time(directory: Path) -> None:
    engines = [LocalEngine(directory, ScriptCommands()) for _ in range(3)]
    await asyncio.gather(*(engine.ensure(POOL, 3) for engine in engines))
    assert set(pids_in(directory)) == {"p-1", "p-2", "p-3"}


async def test_command_that_cannot_run_is_an_error_of_the_engine(directory: Path) -> None:
    class Missing(ScriptCommands):
        async def command_for(self, request: NodeRequest) -> NodeCommand:
            return NodeCommand(argv=("/does/not/exist",), env={})

    with pytest.raises(ClusterEngineError, match="p-1 cannot be started"):
        await LocalEngine(directory, Missing()).ensure(POOL, 1)


async def test_system_with_running_nodes_is_not_purged(tmp_path: Path) -> None:
    state, node = StateDir(tmp_path), StateDir(tmp_path / "pools" / "p-1" / "state")
    node.create()
    with node.lock(), pytest.raises(OSError, match=r"nodes of pools still run here: p-1\."):
        state.purge()
    state.purge()
    assert not tmp_path.exists()


async def test_process_id_that_another_process_has_now_is_not_the_node(directory: Path) -> None:
    engine = LocalEngine(directory, ScriptCommands())
    await engine.ensure(POOL, 1)
    (pid,) = pids_in(directory).values()
    (directory / "p-1" / "process.json").write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    assert await states(engine) == {"p-1": EngineNodeState.STARTING}
    await engine.release("p-1", 0)
    assert await states(engine) == {}, "this process got no signal"
    os.kill(pid, signal.SIGKILL)
