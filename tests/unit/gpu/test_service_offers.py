"""Registrations on a node: an invalid one is reported and does not affect the others."""

from pathlib import Path
from typing import Any

import pytest

from arl_gpu.node.service_reconciler import ServiceReconciler
from support.registering import Owner, carried_out, registry_of, wish


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    "config", ["[]", "{", '{"max_position_embeddings": "x"}', '{"max_position_embeddings": 1e999}']
)
def test_invalid_model_config_is_reported_as_service_health(tmp_path: Path, config: str) -> None:
    for name, content in (("bad", config), ("good", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    registry = registry_of(tmp_path)
    registry.set_desired([wish("bad"), wish("long", source="a" * 300), wish("good")], read=registry.begin_read())
    assert registry.has_pending_changes
    assert registry.health["bad"].startswith("bad_registration")
    assert "good" not in registry.health


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"source": "nowhere"}, "nowhere/config.json does not exist below TANGRAM_MODELS"),
        ({"source": "../a"}, "../a/config.json does not exist below TANGRAM_MODELS"),
        ({"kind": "judge", "source": "qwen"}, "TANGRAM_ENGINES of this node has no engine 'qwen'"),
        ({"kind": "oracle"}, "this node does not support the kind 'oracle'"),
    ],
)
def test_missing_requirement_is_reported_until_service_is_available(
    models: Path, changed: dict[str, Any], why: str
) -> None:
    registry = registry_of(models, Owner())
    carried_out(registry, wish("a", **changed))
    assert registry.health["a"].startswith(f"not_here: {why}")
    assert [each.name for each in registry.refused] == ["a"]
    carried_out(registry, wish("a", registered_at=2.0))
    assert (registry.health, registry.refused, registry.is_offered("a", 2.0)) == ({}, [], True)


def test_missing_models_directory_is_reported() -> None:
    registry = ServiceReconciler([], [Owner()], None, on_response=print, is_idle=lambda name: True)
    carried_out(registry, wish("a"))
    assert "TANGRAM_MODELS of this node is not set" in registry.health["a"]


def test_offered_service_is_unchanged_while_its_files_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    config = tmp_path / "a" / "config.json"
    config.write_text('{"max_position_embeddings": 7}')
    owner = Owner()
    registry = registry_of(tmp_path, owner)
    carried_out(registry, wish("a"))
    config.write_text('{"max_posi')
    carried_out(registry, wish("a"))
    assert ([(each.name, each.max_tokens) for each in registry.offered], owner.orders) == ([("a", 7)], ["offer a"])
    # Registered anew it is read anew.
    carried_out(registry, wish("a", registered_at=2.0))
    assert (registry.offered, owner.orders) == ([], ["offer a", "forget a"])
