"""What the OTEL_* variables mean, and which traces are taken."""

import secrets
from typing import Any

import pytest

from arl_kit.otlp import OtlpSettings, Sampler
from arl_kit.settings import load

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def settings_of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> OtlpSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return OtlpSettings()


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, None),
        ({ENDPOINT: "http://c:4318"}, "http://c:4318/v1/traces"),
        ({ENDPOINT: "http://c:4318/"}, "http://c:4318/v1/traces"),
        ({ENDPOINT: "http://c:4318", TRACES: "http://t/x"}, "http://t/x"),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_spans_go_where_the_variables_say(
    variables: dict[str, str], url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(monkeypatch, **variables).url == url


def test_what_is_said_of_traces_goes_before_what_is_said_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1000", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2000"}
    assert settings_of(monkeypatch, **both).timeout_ms == 2000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "nothing"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
    ],
)
def test_a_wrong_variable_is_named_and_nothing_is_exported(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(ENDPOINT, "http://c:4318")
    otlp = load(OtlpSettings, otherwise=OtlpSettings.model_construct(disabled=True))
    assert capsys.readouterr().err.startswith(f"{name}: ")
    assert otlp.url is None


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = dict.fromkeys(("OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER_ARG", "OTEL_EXPORTER_OTLP_TIMEOUT"), "")
    assert settings_of(monkeypatch, **empty, **{ENDPOINT: "http://c:4318"}).url == "http://c:4318/v1/traces"


@pytest.mark.parametrize(
    ("sampler", "of_root", "of_sampled", "of_unsampled"),
    [
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("parentbased_always_on", True, True, False),
        ("parentbased_always_off", False, True, False),
    ],
)
def test_a_sampler_follows_the_parent_where_its_name_says_so(
    sampler: Any, of_root: bool, of_sampled: bool, of_unsampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = Sampler.of(settings_of(monkeypatch, OTEL_TRACES_SAMPLER=sampler)).takes
    trace = secrets.token_bytes(16)
    assert (takes(trace), takes(trace, parent=True), takes(trace, parent=False)) == (of_root, of_sampled, of_unsampled)


def test_a_ratio_takes_as_many_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    sampler = Sampler.of(settings_of(monkeypatch, **variables))
    traces = [number.to_bytes(8, "big") * 2 for number in range(0, 1 << 64, 1 << 52)]
    assert sum(map(sampler.takes, traces)) == len(traces) / 4
    assert [trace for trace in traces if sampler.takes(trace)] == [trace for trace in traces if sampler.takes(trace)]
