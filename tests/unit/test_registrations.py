"""What operators register: a bad one is said, and is no matter of the others'."""

from pathlib import Path
from typing import Any

import pytest

from arl_gpu.registry import Registry
from arl_gpu.services import Wish


def wish(name: str, **other: Any) -> Wish:
    said: dict[str, Any] = {
        "kind": "similarity",
        "source": name,
        "options": {},
        "pinned": False,
        "drained": False,
        "load_asked": None,
    }
    return Wish(name=name, **said | other)


def registry_of(models: Path, *owners: Any) -> Registry:
    return Registry([], owners, models, learn=lambda number, answer: None, is_idle=lambda name: True)


@pytest.mark.parametrize("config", ["[]", "{", '{"max_position_embeddings": "x"}', '{"max_position_embeddings": 1e999}'])
def test_a_config_that_cannot_be_understood_is_its_services_health(tmp_path: Path, config: str) -> None:
    for name, content in (("bad", config), ("good", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    registry = registry_of(tmp_path)
    assert registry.wished([wish("bad"), wish("long", source="a" * 300), wish("good")])
    assert registry.health["bad"].startswith("bad_registration")
    assert "good" not in registry.health
