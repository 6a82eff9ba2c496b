"""Settings can be read from files, so that no secret must be in an environment variable."""

import json
from pathlib import Path

import pytest

from arl_gateway.settings import GatewaySettings
from arl_kit.settings import load_settings
from arl_local.provision import ProvisionSettings


def test_settings_missing_in_environment_are_read_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("database_url", "postgresql://file"),
        ("service_token", "f" * 16),
        ("caller_keys", json.dumps({"a": "b" * 64})),
    ):
        (tmp_path / f"tangram_{name}").write_text(value)
    needed = {"PORT": "1", "ADMISSION_URL": "http://a", "SCHEDULER_URL": "http://s"}
    for name, value in (needed | {"DATABASE_URL": "postgresql://environment"}).items():
        monkeypatch.setenv(f"TANGRAM_{name}", value)
    monkeypatch.setenv("TANGRAM_SECRETS_DIR", str(tmp_path))
    settings = load_settings(GatewaySettings)
    assert settings.database_url.get_secret_value() == "postgresql://environment"
    assert settings.service_token.get_secret_value() == "f" * 16
    assert settings.caller_keys["a"].get_secret_value() == "b" * 64


def test_database_owner_password_can_be_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tangram_database_password").write_text("a/b\n")
    monkeypatch.setenv("TANGRAM_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("TANGRAM_DATABASE_URL", "postgresql://owner@host:5432/name")
    assert load_settings(ProvisionSettings).owner_url == "postgresql://owner:a%2Fb@host:5432/name"
