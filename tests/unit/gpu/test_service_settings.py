"""Settings of the GPU manager and their error messages."""

import json
import re
from pathlib import Path

import pytest

from arl_gpu.settings import GpuSettings
from arl_kit.settings import load_settings

NEEDED = {
    "TANGRAM_PORT": "1",
    "TANGRAM_DATABASE_URL": "postgresql://x",
    "TANGRAM_SERVICE_TOKEN": "t" * 16,
    "TANGRAM_SCHEDULER_URL": "http://s",
}


@pytest.fixture(autouse=True)
def needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("value", "found"), [("minilm", ("minilm",)), ("minilm, minilm", ("minilm",)), ("", ())])
def test_services_setting_is_a_comma_separated_list(
    value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANGRAM_SERVICES", value)
    assert load_settings(GpuSettings).services == found


@pytest.mark.parametrize(("value", "found"), [("2", ("cpu", "cpu")), ("cpu, cuda:1", ("cpu", "cuda:1"))])
def test_devices_setting_is_names_or_number_of_cpu_devices(
    value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl_gpu.settings.find_spec", lambda _: "there")
    monkeypatch.setenv("TANGRAM_DEVICES", value)
    assert load_settings(GpuSettings).devices == found


def test_gpu_device_without_torch_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("arl_gpu.settings.find_spec", lambda _: None)
    monkeypatch.setenv("TANGRAM_DEVICES", "cpu,cuda:1")
    with pytest.raises(SystemExit, match="2"):
        load_settings(GpuSettings)
    assert "cuda:1: needs torch, which is not installed: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TANGRAM_SERVICES", "bert", "TANGRAM_SERVICES is 'bert': unknown: bert. Available: minilm"),
        ("TANGRAM_CALLER_KEYS", "{", "TANGRAM_CALLER_KEYS: is not valid JSON: Expecting property name"),
        (
            "TANGRAM_ENGINES",
            '{"e": {"url": "http://x", "device_memory_mib": 1}}',
            "TANGRAM_ENGINES: e.family: Field required",
        ),
        ("TANGRAM_DEVICES", "cpu,gpu", "TANGRAM_DEVICES is 'cpu,gpu': gpu: a device must be cpu or cuda:N"),
        ("TANGRAM_DEVICES", "cuda:0,cuda:0", "TANGRAM_DEVICES is .*: a GPU is listed twice"),
    ],
)
def test_invalid_setting_is_reported_in_one_line(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        load_settings(GpuSettings)
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(said, line)


@pytest.mark.parametrize(
    "value", ['"SECRET"', ' {"a": "SECRET"}', '\n{"a": {"api_key": "SECRET"}}', '["SECRET"]', "SECRET"]
)
@pytest.mark.parametrize("name", ["TANGRAM_ENGINES", "TANGRAM_CALLER_KEYS", "TANGRAM_DATABASE_URL"])
def test_value_that_may_contain_secrets_is_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("TANGRAM_DEVICES", "gpu")
    with pytest.raises(SystemExit, match="2"):
        load_settings(GpuSettings)
    said = capsys.readouterr().err
    assert "TANGRAM_DEVICES is 'gpu'" in said
    assert "SECRET" not in said


ENGINE = {"url": "http://127.0.0.1:8001", "family": "vllm", "device_memory_mib": 100, "api_key": "a-secret-key"}


def test_engines_can_be_read_from_secret_file_without_showing_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tangram_engines").write_text(json.dumps({"qwen": ENGINE | {"api_key": "a-secret-key\n"}}))
    monkeypatch.setenv("TANGRAM_SECRETS_DIR", str(tmp_path))
    settings = load_settings(GpuSettings)
    assert settings.engines["qwen"].key == "a-secret-key"
    assert "a-secret-key" not in f"{settings!r} {settings.engines}"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "http://user:a-secret-key@host"}, "URL|url|pattern"),
        ({"url": "ftp://host"}, "pattern"),
        ({"url": "http://host:99999"}, "not a valid address"),
        ({"url": "http://host:abc"}, "not a valid address"),
        ({"url": "http://[::1"}, "not a valid address"),
        ({"api_key": "a-secret-key\u00e9"}, "printable ASCII"),
        ({"admin_key": "a-secret\n-key"}, "printable ASCII"),
        ({"device": 1}, "is on device 1"),
        ({"device_memory_mib": 1000}, "needs 1000 MiB"),
        ({"family": "other"}, "vllm"),
        ({"sleep_timeout_s": 500}, "50"),
    ],
)
def test_invalid_engine_setting_is_reported_without_its_key(
    changed: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANGRAM_ENGINES", json.dumps({"qwen": ENGINE | changed}))
    with pytest.raises(SystemExit):
        load_settings(GpuSettings)
    shown = capsys.readouterr().err
    assert re.search(said, shown)
    assert "a-secret-key" not in shown


def test_node_on_all_interfaces_requires_advertise_url(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANGRAM_HOST", "0.0.0.0")
    with pytest.raises(SystemExit, match="2"):
        load_settings(GpuSettings)
    assert "TANGRAM_ADVERTISE_URL" in capsys.readouterr().err
    monkeypatch.setenv("TANGRAM_ADVERTISE_URL", "http://gpu-1:8704")
    assert load_settings(GpuSettings).url == "http://gpu-1:8704"
