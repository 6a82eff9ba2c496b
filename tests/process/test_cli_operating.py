"""Test the operators' command line: keys, queues, projects and nodes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from arl_tangram import ActionOutcome, Tangram, Unauthenticated
from arl_tangram.cli.output import EXIT_USAGE
from arl_tangram.transport.connection import resolve_connection
from support.machine import Machine, a_machine


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with a_machine(tmp_path_factory.mktemp("operating") / "state") as machine:
        yield machine


class TestKeys:
    def test_key_works_until_it_is_revoked(self, machine: Machine) -> None:
        key = machine.cli("keys", "create", "--expires-days", "1").stdout.strip()
        with Tangram(resolve_connection(directory=machine.directory).url, key, retry_timeout_s=0) as tangram:
            assert tangram.run(task="keys", argv=["true"]).outcome is ActionOutcome.OK
            listed = json.loads(machine.cli("keys", "list", "-o", "json").stdout)["items"]
            assert listed[0]["prefix"] == key[:8]
            assert listed[0]["expires_at"]
            machine.cli("keys", "revoke", key[:8])
            with pytest.raises(Unauthenticated):
                tangram.submit(task="keys", argv=["true"])

    def test_new_key_is_never_shown_again(self, machine: Machine) -> None:
        created = json.loads(machine.cli("keys", "create", "--scope", "actions:read", "-o", "json").stdout)
        assert created["key"] not in machine.cli("keys", "list", "-o", "json").stdout
        assert created["key"] not in machine.cli("keys", "revoke", str(created["id"])).stdout
        logs = (path.read_text(errors="replace") for path in (machine.directory / "logs").glob("*.log"))
        assert created["key"] not in "".join(logs)

    @pytest.mark.parametrize("arguments", [("create", "--scope", "root"), ("revoke", "tk_nobody"), ("revoke", "77777")])
    def test_invalid_key_command_is_refused_without_a_traceback(
        self, machine: Machine, arguments: tuple[str, ...]
    ) -> None:
        done = machine.cli("keys", *arguments, check=False)
        assert done.returncode == EXIT_USAGE
        assert "Traceback" not in done.stderr


def row_of(machine: Machine, task: str) -> list[str]:
    """Return the cells of a task's row in `tangram queues list`."""
    rows = [line.split() for line in machine.cli("queues", "list").stdout.splitlines()]
    (row,) = [row for row in rows if row[0] == task]
    return row


class TestQueues:
    def queue(self, machine: Machine, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(machine.cli("queues", *arguments, "-o", "json").stdout)
        return found

    def test_queue_limit_is_set_listed_and_removed(self, machine: Machine) -> None:
        machine.cli("submit", "--task", "limited", "--", "true")
        assert self.queue(machine, "set", "limited", "--max-queued", "7")["max_queued"] == 7
        (listed,) = [each for each in self.queue(machine, "list")["items"] if each["task"] == "limited"]
        assert (listed["max_queued"], listed["queued"], listed["running"]) == (7, 0, 0)
        assert row_of(machine, "limited") == ["limited", "active", "0", "0", "7", "1", "-"]
        assert "max_queued" not in self.queue(machine, "set", "limited", "--default")

    def test_task_and_project_weights_are_changed(self, machine: Machine) -> None:
        machine.cli("submit", "--task", "weighed", "--", "true")
        assert self.queue(machine, "weight", "weighed", "2.5")["weight"] == 2.5
        assert row_of(machine, "weighed")[5] == "2.5"
        assert "0.5" in machine.cli("projects", "weight", "default", "0.5").stdout
        listed = json.loads(machine.cli("projects", "list", "-o", "json").stdout)["items"]
        assert ("default", 0.5) in {(project["name"], project["weight"]) for project in listed}
        machine.cli("projects", "weight", "default", "1")

    def test_queue_quota_is_set_listed_and_removed(self, machine: Machine) -> None:
        machine.cli("submit", "--task", "capped", "--", "true")
        limits = (
            "--running",
            "7",
            "--reward-service",
            "judge=2",
            "--reward-service",
            "minilm=3",
            "--endpoint",
            "search=4",
        )
        said = self.queue(machine, "quota", "capped", *limits)["quota"]
        assert said == {"running": 7, "reward_services": {"judge": 2, "minilm": 3}, "endpoints": {"search": 4}}
        assert row_of(machine, "capped")[6:] == ["7", "judge=2", "minilm=3", "search=4"]
        assert "quota" not in self.queue(machine, "quota", "capped", "--none")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "--none"),
            (("--running", "1", "--none"), "--none"),
            (("--reward-service", "judge"), "judge: write NAME=N"),
            (("--reward-service", "judge=0"), "reward_services.judge"),
            (("--reward-service", "math=1"), "math"),
        ],
    )
    def test_empty_or_invalid_quota_is_refused(self, machine: Machine, arguments: tuple[str, ...], said: str) -> None:
        done = machine.cli("queues", "quota", "capped", *arguments, check=False)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (EXIT_USAGE, True, False)

    @pytest.mark.parametrize("arguments", [("limited",), ("limited", "--max-queued", "1", "--default")])
    def test_queues_set_requires_a_number_or_default(self, machine: Machine, arguments: tuple[str, ...]) -> None:
        assert machine.cli("queues", "set", *arguments, check=False).returncode == EXIT_USAGE


def connected_to(machine: Machine) -> Tangram:
    connection = resolve_connection(directory=machine.directory)
    return Tangram(connection.url, connection.api_key)


class TestOperating:
    def test_top_shows_tasks_and_nodes(self, machine: Machine) -> None:
        with connected_to(machine) as tangram:
            tangram.run(task="shown", argv=["true"])
        shown = machine.cli("top", "--once").stdout
        assert "shown" in shown
        nodes = json.loads(machine.cli("nodes", "list", "-o", "json").stdout)["items"]
        assert nodes[0]["name"] in shown

    def test_node_is_drained_and_uncordoned(self, machine: Machine) -> None:
        nodes = json.loads(machine.cli("nodes", "list", "-o", "json").stdout)["items"]
        name = next(node["name"] for node in nodes if node["kind"] == "cpu")
        emptied = json.loads(machine.cli("nodes", "drain", name, "--deadline", "0", "-o", "json").stdout)
        assert emptied["drained"] is True
        opened = json.loads(machine.cli("nodes", "uncordon", name, "-o", "json").stdout)
        assert opened["cordoned"] is False

    def test_live_node_is_not_removed(self, machine: Machine) -> None:
        name = json.loads(machine.cli("nodes", "list", "-o", "json").stdout)["items"][0]["name"]
        refused = machine.cli("nodes", "remove", name, check=False)
        assert (refused.returncode, "it is alive" in refused.stderr) == (EXIT_USAGE, True)
        assert machine.cli("nodes", "remove", "nobody", check=False).returncode == EXIT_USAGE

    def test_paused_queue_continues_after_it_is_resumed(self, machine: Machine) -> None:
        with connected_to(machine) as tangram:
            tangram.run(task="halting", argv=["true"])
            assert "paused" in machine.cli("queues", "pause", "halting").stdout
            waiting = tangram.submit(task="halting", argv=["true"])
            assert "paused" not in machine.cli("queues", "resume", "halting").stdout
            assert tangram.wait([waiting.id])[0].outcome is ActionOutcome.OK
