"""Test images by name on a whole system with a real registry."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arl_core.domain.states import WaitReason
from arl_tangram import ActionOutcome, ActionState, Conflict, Tangram
from support.conditions import eventually
from support.images import a_layer, a_root, member, packed
from support.machine import Machine, a_machine
from support.registry import Registry, a_registry

RUN: dict[str, Any] = {"task": "images", "timeout_s": 60, "deadline_s": 120}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with a_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return packed(a_root(tmp_path_factory.mktemp("root")))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("images")
    settings = directory / "registries.toml"
    settings.write_text(f'[registries."{registry.host}"]\nplain_http = true\n')
    limits = {"TANGRAM_IMAGES_MIB": "64", "TANGRAM_IMAGE_GIVE_UP_S": "90"}
    with a_machine(directory / "state", TANGRAM_REGISTRIES_FILE=str(settings), **limits) as machine:
        yield machine


@pytest.fixture
def tangram(machine: Machine) -> Iterator[Tangram]:
    with machine.client() as tangram:
        (node,) = [node for node in tangram.nodes().items if node.kind == "cpu"]
        if not any(each.name == "images" and each.level == "enforced" for each in node.enforced):
            pytest.skip("this machine cannot start environments from images")
        yield tangram


def image_with(registry: Registry, name: str, base: bytes, text: str, **options: Any) -> str:
    """Push an image with a file `text` on top of the base, and return its name."""
    registry.push(name, [base, a_layer(member("data/text", text))], config={"WorkingDir": "/data"}, **options)
    return f"{registry.host}/{name}"


class TestPulls:
    def test_action_runs_in_an_image_that_no_node_has(self, tangram: Tangram, registry: Registry, base: bytes) -> None:
        image = image_with(registry, "first:1", base, "pulled")
        done = tangram.run(template=image, argv=["cat", "text"], **RUN)
        assert (done.outcome, done.stdout) == (ActionOutcome.OK, "pulled"), done

    def test_environment_runs_in_an_image(self, tangram: Tangram, registry: Registry, base: bytes) -> None:
        image = image_with(registry, "second:1", base, "two")
        with tangram.environment(task="images", template=image) as environment:
            assert environment.run(argv=["cat", "text"]).stdout == "two"

    def test_image_that_does_not_exist_is_an_infrastructure_error(self, tangram: Tangram, registry: Registry) -> None:
        done = tangram.run(template=f"{registry.host}/nothing:1", argv=["true"], **RUN)
        assert (done.outcome, done.reason) == (ActionOutcome.INFRA_ERROR, "image_not_found")

    def test_action_after_a_failure_finds_an_image_that_was_pushed_meanwhile(
        self, tangram: Tangram, registry: Registry, base: bytes
    ) -> None:
        template = f"{registry.host}/late:1"
        assert tangram.run(template=template, argv=["true"], **RUN).reason == "image_not_found"
        image_with(registry, "late:1", base, "late")
        for _ in range(30):
            done = tangram.run(template=template, argv=["cat", "text"], **RUN)
            if done.reason is None:
                break
        assert done.stdout == "late", done

    def test_image_of_another_architecture_is_refused(self, tangram: Tangram, registry: Registry, base: bytes) -> None:
        image = image_with(registry, "foreign:1", base, "x", platform={"architecture": "s390x"})
        done = tangram.run(template=image, argv=["true"], **RUN)
        assert (done.outcome, done.reason) == (ActionOutcome.INFRA_ERROR, "image_invalid")


class TestUnavailableRegistry:
    async def test_action_waits_for_a_killed_registry_and_runs_once_it_is_back(
        self, tangram: Tangram, registry: Registry, base: bytes
    ) -> None:
        image = image_with(registry, "killed:1", base, "back")
        registry.stop()
        try:
            action = tangram.submit(template=image, argv=["cat", "text"], **RUN)

            def is_waiting() -> bool:
                wait = tangram.explain(action.id).wait
                if wait is None or wait.reason is not WaitReason.PULLING_IMAGE or wait.image is None:
                    return False
                assert wait.image.image == image
                return "does not respond" in (wait.image.message or "")

            await eventually(is_waiting, timeout_s=40)
            seen = tangram.get(action.id)
            assert seen.state is ActionState.QUEUED
            assert seen.image is not None
            assert seen.image.state == "pulling"
        finally:
            registry.start()
        (done,) = tangram.wait([action.id])
        assert (done.outcome, done.stdout, done.image) == (ActionOutcome.OK, "back", None)


class TestDiskBudget:
    def test_longest_unused_image_is_removed_and_none_in_use(
        self, machine: Machine, tangram: Tangram, registry: Registry, base: bytes
    ) -> None:
        def large(name: str) -> str:
            registry.push(f"{name}:1", [base, a_layer(member("text", name), member("noise", os.urandom(12 << 20)))])
            return f"{registry.host}/{name}:1"

        def names() -> set[str]:
            records = (machine.directory / "templates" / "names").glob("@*.json")
            return {json.loads(path.read_text())["name"] for path in records}

        kept = large("kept")
        with tangram.environment(task="images", template=kept) as environment:
            images = [large(f"large-{number}") for number in range(4)]
            for image in images:
                assert tangram.run(template=image, argv=["cat", "/text"], **RUN).stdout in image
            assert environment.run(argv=["cat", "/text"]).stdout == "kept"
            assert {kept, images[-1]} <= names()
            assert images[0] not in names()


class TestAdministration:
    async def test_images_are_pulled_listed_and_removed(
        self, machine: Machine, tangram: Tangram, registry: Registry, base: bytes, tmp_path: Path
    ) -> None:
        names = [image_with(registry, f"prefetched-{number}:1", base, "x") for number in range(2)]
        (tmp_path / "images").write_text("# images\n" + "\n".join(names))
        assert "2 requests" in machine.cli("images", "prefetch", str(tmp_path / "images")).stdout

        def states() -> list[str]:
            return [image.state for image in tangram.images().items if image.name in names]

        await eventually(lambda: states() == ["ready", "ready"], timeout_s=40)
        assert names[0] in machine.cli("images", "list").stdout
        assert tangram.remove_images(names).count == 2
        await eventually(lambda: states() == [], timeout_s=40)
        with pytest.raises(Conflict, match="pool 'nowhere' has no live node"):
            tangram.pull_images(names, pool="nowhere")
