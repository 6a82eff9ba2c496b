"""Test the SDK against a system started by `tangram up`: environments, many actions, live output."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from arl_tangram import ActionOutcome, BatchRefused, NotFound, NotSettled, ScoreItem, TooLarge, ValidationFailed
from support.machine import Machine, a_machine

SMALL = {"memory_mib": 64, "disk_mib": 8}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("sdk") / "state") as machine:
        yield machine


def test_action_exposes_its_result_as_properties(machine: Machine) -> None:
    with machine.client() as tangram:
        action = tangram.run(task="t", argv=["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (action.ok, action.masked, action.exit_code) == (False, False, 3)
        assert (action.stdout, action.stderr) == ("out\n", "err\n")
        queued = tangram.submit(task="t", argv=["sleep", "60"])
        for name in ("ok", "masked", "stdout", "stderr", "exit_code"):
            with pytest.raises(NotSettled, match=str(queued.id)):
                getattr(queued, name)
        tangram.cancel(queued.id)
        [cancelled] = tangram.wait([queued.id])
        assert (cancelled.ok, cancelled.masked, cancelled.stdout) == (False, True, "")


def test_run_many_and_map_return_actions_in_order(machine: Machine) -> None:
    with machine.client() as tangram:
        sleeps = [{"argv": ["sh", "-c", f"sleep {s}; echo {s}"]} for s in ("0.4", "0", "0.2")]
        assert [each.stdout for each in tangram.run_many(sleeps, task="many", cpu=0.1)] == ["0.4\n", "0\n", "0.2\n"]
        counted = tangram.map(({"argv": ["echo", str(n)]} for n in range(7)), max_in_flight=3, task="many", cpu=0.1)
        assert [each.stdout for each in counted] == [f"{n}\n" for n in range(7)]
        with pytest.raises(BatchRefused) as refused:
            tangram.run_many([{"argv": ["true"]}, {"argv": ["true"], "cpu": 4000}], task="many")
        assert (list(refused.value.refused), len(refused.value.accepted)) == ([1], 1)


async def test_async_run_many_and_map_return_actions_in_order(machine: Machine) -> None:
    async with machine.async_client() as tangram:
        found = await tangram.run_many([{"argv": ["echo", str(n)]} for n in range(3)], task="many", cpu=0.1)
        assert [each.stdout for each in found] == ["0\n", "1\n", "2\n"]
        actions = ({"argv": ["echo", str(n)]} for n in range(5))
        assert [each.stdout async for each in tangram.map(actions, max_in_flight=2, task="many", cpu=0.1)] == [
            f"{n}\n" for n in range(5)
        ]


def test_environment_ends_with_its_with_block(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "local.txt").write_text("local")
    with machine.client() as tangram:
        with tangram.environment(task="t", files={"a.txt": "first"}, **SMALL) as env:
            assert env.run(argv=["cat", "a.txt"]).stdout == "first"
            env.files.write("b/c.bin", b"\x00\xff")
            assert env.files.read("b/c.bin") == b"\x00\xff"
            with pytest.raises(NotFound, match="none"):
                env.files.read("none")
            env.upload(tmp_path / "tree", "up")
            assert [each.path for each in env.files.list("up")] == ["local.txt"]
            shell = env.shell()
            shell.run("cd up; NAME=tangram")
            assert shell.run("echo $NAME; ls").stdout.splitlines() == ["tangram", "local.txt"]
            env.download("up", tmp_path / "down")
            saved = env.snapshot()
        assert tangram.get_environment(env.id).info.state in ("ending", "ended")
        with tangram.environment(task="t", snapshot=saved.id) as copy:
            assert copy.files.read("a.txt") == b"first"
            tangram.end_environment(copy.id)
    assert [path.name for path in (tmp_path / "down").rglob("*.txt")] == ["local.txt"]


async def test_async_environment_ends_with_its_with_block(machine: Machine) -> None:
    async with machine.async_client() as tangram:
        async with tangram.environment(task="t", **SMALL) as env:
            await env.files.write_many({"a": "1", "b": "2"})
            assert [each.path for each in await env.files.list()] == ["a", "b"]
            assert (await env.shell().run("cat a b")).stdout == "12"
        assert (await tangram.get_environment(env.id)).info.state in ("ending", "ended")
        kept = await tangram.environment(task="t", **SMALL)
        assert (await kept.run(argv=["true"])).outcome is ActionOutcome.OK
        await kept.end()


def test_follow_yields_output_as_text(machine: Machine) -> None:
    with machine.client() as tangram:
        action = tangram.submit(task="t", argv=["sh", "-c", "printf '\\303'; sleep 0.1; printf '\\251'; echo err >&2"])
        assert "".join(tangram.follow(action.id, stream="stdout")) == "é"
        assert "".join(tangram.follow(action.id, stream="stderr")) == "err\n"


def test_score_splits_many_items_and_keeps_their_order(machine: Machine) -> None:
    with machine.client() as tangram:
        items = [ScoreItem(text=f"{n}", reference="299") for n in range(300)]
        scores = tangram.score("exact", items, task="t")
        assert [each.score for each in scores] == [0.0] * 299 + [1.0]


async def test_cancelled_creation_leaves_no_environment(machine: Machine) -> None:
    async with machine.async_client() as tangram:
        tasks = [asyncio.create_task(tangram.environment(task="abandoned", **SMALL)) for _ in range(6)]
        for at, task in enumerate(tasks):
            await asyncio.wait([task], timeout=0.002 * at)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        created = [task.result().id for task in tasks if not task.cancelled() and task.exception() is None]
        live = {each.id for each in await tangram.environments(task="abandoned", state="live")}
        assert live <= set(created)
        for id in created:
            await tangram.end_environment(id)


def test_file_above_the_limit_is_too_large_and_not_missing(machine: Machine) -> None:
    with machine.client() as tangram, tangram.environment(task="t", memory_mib=64, disk_mib=32) as env:
        env.run(argv=["sh", "-c", "head -c 9000000 /dev/zero >big"])
        with pytest.raises(TooLarge, match="big"):
            env.files.read("big")


def test_error_of_a_block_is_not_replaced_by_the_end_of_its_environment(machine: Machine) -> None:
    def fail_inside() -> None:
        with tangram.environment(task="t", **SMALL) as env:
            tangram.end_environment(env.id)
            raise ZeroDivisionError

    with machine.client() as tangram, pytest.raises(ZeroDivisionError):
        fail_inside()


def test_map_yields_submitted_actions_before_it_raises(machine: Machine) -> None:
    actions = [{"argv": ["echo", str(n)], **({"cpu": 4000} if n == 5 else {})} for n in range(8)]
    with machine.client() as tangram:
        mapped = tangram.map(actions, max_in_flight=3, task="many")
        seen = [next(mapped).stdout for _ in range(5)]
        # Item 6 comes before the error if it was submitted together with item 5.
        with pytest.raises(BatchRefused) as refused:
            list(mapped)
        unbounded = tangram.map(actions, max_in_flight=0)
        with pytest.raises(ValidationFailed, match="max_in_flight"):
            next(unbounded)
    assert (seen, list(refused.value.refused)) == ([f"{n}\n" for n in range(5)], [5])


def test_invalid_admin_values_name_the_field(machine: Machine) -> None:
    with machine.client() as tangram:
        with pytest.raises(ValidationFailed, match="max_queued"):
            tangram.set_queue_limit("t", 0)
        with pytest.raises(ValidationFailed, match="weight"):
            tangram.set_queue_weight("t", 1000)
        with pytest.raises(ValidationFailed, match="running"):
            tangram.set_queue_quota("t", running=0)
        with pytest.raises(ValidationFailed, match="weight"):
            tangram.set_project_weight("default", 1000)
        with pytest.raises(ValidationFailed, match="cpu_max"):
            tangram.plan_capacity(cpu=2, cpu_max=1)
