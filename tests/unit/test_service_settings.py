"""What a service says of its environment where that can't be read."""

import re

import pytest

from arl_gpu.settings import GpuSettings
from arl_kit.settings import load

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
def test_services_are_names_with_commas_between_them(
    value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANGRAM_SERVICES", value)
    assert load(GpuSettings).services == found


@pytest.mark.parametrize(("value", "found"), [("2", ("cpu", "cpu")), ("cpu, cuda:1", ("cpu", "cuda:1"))])
def test_devices_are_names_or_a_number_of_cpu_devices(
    value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANGRAM_DEVICES", value)
    assert load(GpuSettings).devices == found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TANGRAM_SERVICES", "bert", "TANGRAM_SERVICES: .*bert: there is minilm"),
        ("TANGRAM_ACCEPT", "{", '"accept"'),
        ("TANGRAM_DEVICES", "cpu,gpu", "TANGRAM_DEVICES: .*gpu: a device is cpu or cuda:N"),
        ("TANGRAM_DEVICES", "cuda:0,cuda:0", "TANGRAM_DEVICES: .*one process owns a GPU"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        load(GpuSettings)
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(said, line)
