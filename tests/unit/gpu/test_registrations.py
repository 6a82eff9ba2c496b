"""Registered reward services and later load, pin and drain requests, as orders to the devices."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arl_gpu.catalog.service_files import ServiceFiles, max_item_tokens
from arl_gpu.node.service_reconciler import ServiceReconciler
from support.registering import Owner, carried_out, carry_out, registry_of, wish


def test_outdated_read_does_not_undo_newer_desired_services(models: Path) -> None:
    owner = Owner()
    registry = registry_of(models, owner)
    earlier, later = registry.begin_read(), registry.begin_read()
    registry.set_desired([wish("a", registered_at=2.0)], read=later)
    asyncio.run(carry_out(registry))
    registry.set_desired([wish("a", registered_at=1.0)], read=earlier)
    assert (registry.has_pending_changes, registry.is_offered("a", 2.0)) == (False, True)


class SlowOwner(Owner):
    """A fake device owner whose loads and evictions last until the test ends them."""

    def __init__(self, *deadly: str) -> None:
        super().__init__(*deadly)
        self.moving, self.may_end = asyncio.Event(), asyncio.Event()

    async def restore(self, name: str) -> dict[str, Any]:
        self.moving.set()
        await self.may_end.wait()
        await super().restore(name)
        return {"error": "wake_failed", "message": "it would not wake"}

    async def evict(self, name: str) -> dict[str, Any]:
        self.moving.set()
        await self.may_end.wait()
        return await super().evict(name)


@pytest.mark.parametrize(
    ("asked", "deadly"), [({"load_asked": 1.0}, ()), ({"load_asked": 1.0}, ("restore a",)), ({"drained_at": 1.0}, ())]
)
async def test_new_registration_neither_waits_for_move_nor_inherits_result(
    models: Path, asked: dict[str, float], deadly: tuple[str, ...]
) -> None:
    owner = SlowOwner(*deadly)
    owner.trouble = "engine_stays"
    registry = registry_of(models, owner)
    registry.set_desired([wish("a", **asked), wish("b", **asked)], read=registry.begin_read())
    await registry.apply_offers()
    moving = asyncio.create_task(registry.apply_moves())
    await owner.moving.wait()
    registry.set_desired([wish("a", registered_at=2.0, drained_at=2.0)], read=registry.begin_read())
    assert registry.has_pending_changes
    await registry.apply_offers()
    assert (registry.is_offered("a", 2.0), registry.is_offered("b", 1.0)) == (True, False)
    assert not registry.has_pending_changes, "no change may start while a move is in progress"
    owner.may_end.set()
    await moving
    assert [order for order in owner.orders if order in ("restore b", "evict b")] == [], "b is no longer registered"
    assert registry.health == {}
    assert registry.has_pending_changes, "the new registration is drained but not evicted yet"


async def test_load_applies_to_current_registration_of_its_name(models: Path) -> None:
    owner = Owner()
    registry = registry_of(models, owner)
    registry.set_desired([wish("a")], read=registry.begin_read())
    await registry.apply_offers()
    registry.set_desired([wish("a", registered_at=2.0, load_asked=3.0)], read=registry.begin_read())
    await registry.apply_moves()
    assert "restore a" not in owner.orders
    await carry_out(registry)
    assert owner.orders == ["offer a", "offer a", "restore a"]


def test_load_that_kills_worker_is_tried_once_without_blocking_others(models: Path) -> None:
    owner = Owner("restore a")
    registry = registry_of(models, owner)
    wishes = [wish("a", load_asked=1.0), wish("b", load_asked=1.0)]
    for _ in range(4):
        carried_out(registry, *wishes)
    assert [each for each in owner.orders if each.startswith("restore")] == ["restore a", "restore b"]
    assert registry.health == {"a": "worker_died: killed"}


def test_service_forgotten_during_worker_death_can_be_pinned_again(models: Path) -> None:
    dead, alive = Owner("forget a"), Owner()
    registry = registry_of(models, dead, alive)
    for _ in range(2):
        carried_out(registry, wish("a", pinned=True))
    carried_out(registry)
    assert alive.orders[-1] == "forget a"
    for _ in range(2):
        carried_out(registry, wish("a", pinned=True))
    assert alive.orders[-2:] == ["offer a", "pin a"]


def test_judges_use_engine_device_until_the_last_is_drained(models: Path) -> None:
    away, here = Owner(), Owner()
    registry = registry_of(models, away, here, engines={"qwen": 1})
    one, other, none = (
        wish(name, kind="judge", source=source) for name, source in (("a", "qwen"), ("b", "qwen"), ("c", "llama"))
    )
    carried_out(registry, one, other, none)
    assert ([each.name for each in registry.judges], away.orders, here.orders) == (
        ["a", "b"],
        [],
        ["offer a", "offer b"],
    )
    carried_out(registry, replace(one, drained_at=1.0), other, none)
    assert here.orders == ["offer a", "offer b"]
    carried_out(registry, replace(one, drained_at=1.0), replace(other, drained_at=1.0), none)
    assert here.orders[2:] == ["evict a", "evict b"]


def test_later_of_drain_and_load_takes_effect(models: Path) -> None:
    owner = Owner()
    registry = registry_of(models, owner)
    carried_out(registry, wish("a"), wish("b"))
    carried_out(registry, wish("a", load_asked=1.0, drained_at=2.0), wish("b", drained_at=1.0, load_asked=2.0))
    assert owner.orders[2:] == ["evict a", "restore b"]
    carried_out(registry, wish("a", load_asked=1.0), wish("b", drained_at=3.0, load_asked=2.0))
    assert owner.orders[4:] == ["evict b"], "a load older than a drain stays cancelled when the drain ends"


async def test_queued_load_is_dropped_if_service_is_drained_meanwhile(models: Path) -> None:
    owner = SlowOwner()
    registry = registry_of(models, owner)
    registry.set_desired([wish("a", load_asked=1.0), wish("b", load_asked=1.0)], read=registry.begin_read())
    await registry.apply_offers()
    moving = asyncio.create_task(registry.apply_moves())
    await owner.moving.wait()
    registry.set_desired(
        [wish("a", load_asked=1.0), wish("b", load_asked=1.0, drained_at=2.0)], read=registry.begin_read()
    )
    owner.may_end.set()
    await moving
    assert owner.orders[2:] == ["restore a"]


def test_load_request_ends_a_pending_drain(models: Path) -> None:
    owner = Owner()
    owner.trouble = "busy"
    registry = registry_of(models, owner)
    carried_out(registry, wish("a", drained_at=1.0))
    assert (owner.orders, registry.health) == (["offer a", "evict a"], {})
    carried_out(registry, wish("a", drained_at=1.0, load_asked=2.0))
    owner.trouble = None
    carried_out(registry, wish("a", drained_at=1.0, load_asked=2.0))
    assert owner.orders[2:] == ["restore a"]


def test_drain_of_busy_service_is_carried_out_once_idle(models: Path) -> None:
    owner = Owner()
    owner.trouble = "busy"
    registry = registry_of(models, owner)
    for _ in range(2):
        carried_out(registry, wish("a", drained_at=1.0))
    owner.trouble = None
    for _ in range(3):
        carried_out(registry, wish("a", drained_at=1.0))
    assert (owner.orders, registry.health) == (["offer a", "evict a", "evict a", "evict a"], {})


def test_failed_drain_is_reported_while_drained_and_repeated_on_request(models: Path) -> None:
    one, other = Owner(), Owner()
    one.trouble = "engine_trouble"
    registry = registry_of(models, one, other)
    for _ in range(4):
        carried_out(registry, wish("a", drained_at=1.0))
    assert (registry.health, one.orders) == ({"a": "engine_trouble: it stays"}, ["offer a", "evict a"])
    carried_out(registry, wish("a"))
    assert registry.health == {}
    one.trouble = None
    carried_out(registry, wish("a", drained_at=2.0))
    assert (registry.health, one.orders[2:]) == ({}, ["evict a"])


def test_engine_pin_ends_with_its_pinned_judge(models: Path) -> None:
    here = Owner()
    registry = registry_of(models, here, engines={"qwen": 0, "llama": 0})
    one = wish("a", kind="judge", source="qwen", pinned=True)
    for _ in range(2):
        carried_out(registry, one)
    carried_out(registry, replace(one, source="llama", pinned=False))
    assert here.orders[:4] == ["offer a", "pin a", "unpin a", "offer a"]


def test_invalid_judge_reports_bad_registration_health(models: Path) -> None:
    registry = registry_of(models, Owner(), engines={"qwen": 0})
    options = {"judge": {"prompt": "no response", "pattern": "(a)", "words": {"a": 1}}}
    carried_out(registry, wish("a", kind="judge", source="qwen", options=options))
    assert (registry.health["a"].partition(":")[0], list(registry.judges)) == ("bad_registration", [])


def test_registered_name_replaces_built_in_service_even_without_files(models: Path) -> None:
    own = ServiceFiles(name="a", kind="python", package="m:f", directory=Path(), max_tokens=None)
    registry = ServiceReconciler(
        [own], [Owner()], models, on_response=lambda number, answer: None, is_idle=lambda name: True
    )
    carried_out(registry, wish("a", kind=None, source=None, pinned=True))
    assert registry.slots(1) == {"a": 1}
    carried_out(registry, wish("a", source="elsewhere"))
    assert registry.slots(1) == {}
    carried_out(registry)
    assert registry.is_offered("a", None)


class RefusingOwner(Owner):
    """A fake device owner that can refuse an offer without a split plan or a load without room."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: dict[str, int | None] = {}

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.ranks[spec["name"]] = spec["options"].get("rank")
        await super().offer(spec)
        return {"error": "not_split", "message": "no plan"} if self.trouble == "not_split" else {}

    async def restore(self, name: str) -> dict[str, Any]:
        await super().restore(name)
        return {"error": "no_room", "message": "none"} if self.trouble == "no_room" else {}


SPLIT: dict[str, Any] = {"kind": "similarity", "options": {"tensor_parallel": 2}}


def test_split_service_is_loaded_onto_a_group_with_room(
    models: Path,
) -> None:
    owners = [RefusingOwner() for _ in range(5)]
    registry = registry_of(models, *owners)
    owners[1].trouble = "no_room"
    carried_out(registry, wish("a", **SPLIT, load_asked=1.0, pinned=True), wish("b"))
    assert [owner.ranks.get("a", "none") for owner in owners] == [0, 1, 0, 1, "none"]
    loaded = [owner.orders.count("restore a") for owner in owners]
    assert (loaded, registry.splits, registry.health) == ([1, 1, 1, 1, 0], {"a": 2}, {})
    carried_out(registry, wish("a", **SPLIT | {"options": {"tensor_parallel": 4}}, registered_at=2.0), wish("b"))
    assert [owner.ranks.get("a", "none") for owner in owners] == [0, 1, 2, 3, "none"]
    carried_out(registry, wish("b"))
    assert [owner.orders[-1] for owner in owners] == ["forget a"] * 4 + ["offer b"]
    assert registry.splits == {}


@pytest.mark.parametrize(
    ("parts", "config", "sentence"),
    [
        (4, "{}", "the service needs 4 devices, but only 3 of this node "),
        (
            2,
            '{"num_attention_heads": 3}',
            "the model has 3 attention heads, which 2 devices cannot share equally: use another",
        ),
        (2, '{"num_attention_heads": 4, "num_key_value_heads": 1}', "1 key-value heads"),
        (3, '{"num_attention_heads": 3, "intermediate_size": 8}', "8 values between the matrices of a layer"),
    ],
)
def test_split_impossible_on_these_devices_is_refused_with_advice(
    models: Path, parts: int, config: str, sentence: str
) -> None:
    (models / "a" / "config.json").write_text(config)
    registry = registry_of(models, Owner(), Owner(), Owner())
    carried_out(registry, wish("a", options={"tensor_parallel": parts}), wish("b"))
    assert [each.name for each in registry.offered] == ["b"]
    assert [each.name for each in registry.refused] == ["a"]
    assert re.match(f"bad_registration: tensor_parallel: .*{sentence}", registry.health["a"])
    (models / "a" / "config.json").unlink()
    carried_out(registry, wish("a", options={"tensor_parallel": parts}), wish("b"))
    assert registry.health["a"] == "not_here: a/config.json does not exist below TANGRAM_MODELS of this node"


def test_different_devices_do_not_form_a_group(models: Path) -> None:
    registry = ServiceReconciler(
        [], [Owner(), Owner()], models, on_response=print, is_idle=lambda name: True, same_class_devices=1
    )
    carried_out(registry, wish("a", **SPLIT))
    assert "only 1 of this node can" in registry.health["a"]


def test_service_without_split_plan_is_not_offered_until_registered_again(models: Path) -> None:
    owners = [RefusingOwner(), RefusingOwner()]
    registry = registry_of(models, *owners)
    carried_out(registry, wish("a"))
    owners[0].trouble = "not_split"
    for _ in range(2):
        carried_out(registry, wish("a", **SPLIT, registered_at=2.0))
        assert (registry.offered, registry.splits, registry.health) == ([], {}, {"a": "not_split: no plan"})
        assert [each.registered_at for each in registry.refused] == [2.0]
    owners[0].trouble = None
    carried_out(registry, wish("a", registered_at=3.0))
    assert (registry.is_offered("a", 3.0), registry.health, registry.refused) == (True, {}, [])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def test_position_offset_of_padding_reduces_max_tokens() -> None:
    config = {"max_position_embeddings": 514, "pad_token_id": 1}
    assert (
        max_item_tokens(config | {"model_type": "xlm-roberta"}),
        max_item_tokens(config | {"model_type": "bert"}),
    ) == (512, 514)
