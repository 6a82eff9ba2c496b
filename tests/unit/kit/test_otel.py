"""OTEL_* variables: which exporters, sampler, resource and limits a service gets."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from arl_kit.settings import load_settings
from arl_kit.telemetry.otel import (
    OtelSettings,
    TracePipeline,
    open_pipeline,
    service_environment,
    unknown_propagators,
)
from arl_local.process_plan import SERVICES, LocalOptions, ProcessPlan
from arl_local.state_dir import StateDir

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
HTTP, GRPC = "otlp_proto_http", "otlp_proto_grpc"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the OTEL_* variables of the shell that runs the tests."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def set_all(**values: str) -> OtelSettings:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        return OtelSettings()

    return set_all


def a_pipeline(settings: OtelSettings) -> TracePipeline:
    pipeline = open_pipeline(settings, service="scheduler", version="1", exporters=[InMemorySpanExporter()])
    assert pipeline is not None
    return pipeline


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ()),
        ({ENDPOINT: "http://c:4318"}, (HTTP,)),
        ({TRACES: "http://c:4318/x"}, (HTTP,)),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, (GRPC,)),
        ({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, (GRPC,)),
        (
            {
                ENDPOINT: "c",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            (HTTP,),
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, (HTTP,)),
        ({"OTEL_TRACES_EXPORTER": "console"}, ("console",)),
        ({"OTEL_TRACES_EXPORTER": "console, otlp_proto_grpc"}, ("console", GRPC)),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ()),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, ()),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "", "OTEL_TRACES_EXPORTER": ""}, (HTTP,)),
    ],
)
def test_exporters_follow_the_otel_variables(values: dict[str, str], names: tuple[str, ...], variables: Any) -> None:
    assert variables(**values).exporter_names == names


def test_console_exporter_is_opened_by_name(variables: Any) -> None:
    pipeline = open_pipeline(variables(OTEL_TRACES_EXPORTER="console"), service="scheduler", version="1")
    assert pipeline is not None
    assert [type(each) for each in pipeline.exporters] == [ConsoleSpanExporter]


def test_pipeline_is_not_opened_without_an_endpoint(variables: Any) -> None:
    assert open_pipeline(variables(), service="scheduler", version="1") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_SDK_DISABLED", "perhaps"),
    ],
)
def test_malformed_setting_is_named_and_disables_export(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(ENDPOINT, "http://c:4318")
    otel = load_settings(OtelSettings, fallback=OtelSettings.model_construct(disabled=True))
    assert capsys.readouterr().err.startswith(f"{name}: ")
    assert otel.exporter_names == ()


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("OTEL_TRACES_EXPORTER", "otpl", "OTEL_TRACES_EXPORTER: 'otpl' is not installed"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "OTEL_TRACES_SAMPLER: 'jaeger_remote' is not installed"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "-1", "OTEL_SPAN_LINK_COUNT_LIMIT"),
    ],
)
def test_variable_that_the_sdk_refuses_is_named(name: str, value: str, named: str, variables: Any) -> None:
    settings = variables(**{ENDPOINT: "http://c:4318", name: value})
    with pytest.raises(ValueError, match=named):
        open_pipeline(settings, service="scheduler", version="1")


class TestResource:
    def test_default_service_name_names_the_service(self, variables: Any) -> None:
        attributes = a_pipeline(variables()).resource.attributes
        assert (attributes["service.name"], attributes["service.version"]) == ("tangram-scheduler", "1")

    @pytest.mark.parametrize(
        ("values", "name"),
        [
            ({"OTEL_SERVICE_NAME": "rl"}, "rl"),
            ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=rl"}, "rl"),
            ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=rl", "OTEL_SERVICE_NAME": "other"}, "other"),
        ],
    )
    def test_service_name_of_the_environment_is_used(self, values: dict[str, str], name: str, variables: Any) -> None:
        assert a_pipeline(variables(**values)).resource.attributes["service.name"] == name

    def test_resource_attributes_are_added_and_decoded(self, variables: Any) -> None:
        settings = variables(OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=a%20b,service.version=2")
        attributes = a_pipeline(settings).resource.attributes
        assert (attributes["deployment.environment.name"], attributes["service.version"]) == ("a b", "2")

    @pytest.mark.parametrize(
        ("environment", "name"),
        [
            ({}, "tangram-scheduler"),
            ({"OTEL_SERVICE_NAME": "rl"}, "rl-scheduler"),
            ({"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name = rl "}, "rl-scheduler"),
        ],
    )
    def test_services_of_one_environment_have_different_names(self, environment: dict[str, str], name: str) -> None:
        assert service_environment(environment, "scheduler")["OTEL_SERVICE_NAME"] == name

    def test_other_variables_are_passed_to_services(self) -> None:
        passed = service_environment({ENDPOINT: "http://c", "HOME": "/"}, "cpu")
        assert passed == {ENDPOINT: "http://c", "OTEL_SERVICE_NAME": "tangram-cpu"}


def test_unknown_propagators_are_not_passed_to_services() -> None:
    environment = {"OTEL_PROPAGATORS": "tracecontext, xray"}
    assert unknown_propagators(environment) == ["xray"]
    assert service_environment(environment, "cpu")["OTEL_PROPAGATORS"] == "tracecontext"


class TestLimits:
    @pytest.mark.parametrize(
        ("name", "field"),
        [
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "max_span_attributes"),
            ("OTEL_ATTRIBUTE_COUNT_LIMIT", "max_span_attributes"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "max_links"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "max_events"),
            ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "max_span_attribute_length"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "max_span_attribute_length"),
        ],
    )
    def test_limit_is_read_by_the_sdk(self, name: str, field: str, variables: Any) -> None:
        assert getattr(a_pipeline(variables(**{name: "7"})).limits, field) == 7

    def test_batch_variables_bound_queue_and_batches(self, variables: Any) -> None:
        values = {"OTEL_BSP_SCHEDULE_DELAY": "2000", "OTEL_BSP_MAX_QUEUE_SIZE": "9"}
        pipeline = a_pipeline(variables(**values, OTEL_BSP_MAX_EXPORT_BATCH_SIZE="3"))
        assert (pipeline.schedule_delay_s, pipeline.queue_actions, pipeline.batch_spans) == (2.0, 9, 3)


@pytest.mark.parametrize(
    ("values", "description"),
    [
        ({}, "ParentBased{root:AlwaysOnSampler"),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "AlwaysOffSampler"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, "TraceIdRatioBased{0.25}"),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
            "ParentBased{root:TraceIdRatioBased{0.5}",
        ),
    ],
)
def test_sampler_variable_selects_an_sdk_sampler(values: dict[str, str], description: str, variables: Any) -> None:
    sampler = a_pipeline(variables(**values)).sampler
    assert sampler.get_description().startswith(description)
    assert sampler.should_sample(None, int(secrets.token_hex(16), 16), "x") is not None


def test_tangram_up_gives_every_service_its_own_name(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.create()
    environment = {"OTEL_SERVICE_NAME": "rl", ENDPOINT: "http://c:4318"}
    plan = ProcessPlan(
        options=LocalOptions(directory=tmp_path),
        state=state,
        ports=dict.fromkeys((*SERVICES, "cpu"), 1),
        database_urls=dict.fromkeys(SERVICES, "postgresql://nowhere"),
        environment=environment,
    )
    names = {spec.name: spec.env.get("OTEL_SERVICE_NAME") for spec in plan.specs() if spec.name in SERVICES}
    assert names == {name: f"rl-{name}" for name in names}
    assert {"scheduler", "gateway", "cpu"} <= names.keys()
