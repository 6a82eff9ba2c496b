"""Settings can be read from files, so that no secret must be in an environment variable."""

import json
from pathlib import Path

import pytest

from arl_gateway.settings import GatewaySettings
from arl_kit.settings import EXIT_BAD_SETTINGS, load_settings
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


class TestMistakes:
    def said(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **given: str) -> list[str]:
        needed = {
            "port": "1",
            "database_url": "postgresql://",
            "admission_url": "http://a",
            "scheduler_url": "http://s",
        }
        for name, value in (needed | {"service_token": "t" * 16} | given).items():
            monkeypatch.setenv(f"TANGRAM_{name.upper()}", value)
        with pytest.raises(SystemExit) as ended:
            load_settings(GatewaySettings)
        assert ended.value.code == EXIT_BAD_SETTINGS
        return capsys.readouterr().err.splitlines()

    def test_every_wrong_variable_is_named_with_its_value_and_what_is_allowed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = {"rate_limit": "many", "pool_size": "0", "log_level": "loud", "caller_keys": "{"}
        caller_keys, *others = self.said(capsys, monkeypatch, **wrong)
        assert caller_keys.startswith("TANGRAM_CALLER_KEYS: is not valid JSON")
        assert sorted(others) == [
            "TANGRAM_LOG_LEVEL is 'loud': must be one of CRITICAL, ERROR, WARNING, INFO, DEBUG",
            "TANGRAM_POOL_SIZE is '0': Input should be greater than or equal to 1",
            "TANGRAM_RATE_LIMIT is 'many': Input should be a valid integer, unable to parse string as an integer",
        ]

    def test_values_that_may_be_secret_are_not_shown(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = self.said(capsys, monkeypatch, service_token="geheim", caller_keys='{"a": "geheim"}')
        assert len(said) == 2
        assert "geheim" not in "".join(said)
