"""Set-up of the OpenTelemetry SDK from the standard OTEL_* variables.

`OtelSettings` has the variables that decide whether and by which exporter spans are exported. All others are read by
the SDK itself: endpoint, headers, timeout, compression, certificates, sampler, resource, limits and batches.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler

__all__ = ["OtelSettings", "TracePipeline", "open_pipeline", "service_environment", "unknown_propagators"]

BATCH_SPANS = 2048
"""Spans per export: about 0.5 MB. The gRPC receiver of a collector accepts 4 MiB by default."""
SCHEDULE_DELAY_MS = 500
"""Milliseconds of delay after the first settled action, so that a batch fills. The SDK's own default is 5,000."""
QUEUE_ACTIONS = 65_536
"""Settled actions that may wait for a collector, 16 bytes each."""
SAMPLERS = frozenset(
    {
        *("always_on", "always_off", "traceidratio"),
        *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
    }
)
SERVICE_PREFIX = "tangram"
"""Prefix of `service.name` unless OTEL_SERVICE_NAME is set."""


class OtelSettings(BaseSettings):
    """The OTEL_* variables that are not left to the SDK. Without an endpoint or an exporter, nothing is exported."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        env_ignore_empty=True,  # as the specification requires
    )

    disabled: bool = Field(default=False, validation_alias="OTEL_SDK_DISABLED", description="True to export no spans")
    exporters: str | None = Field(
        default=None,
        validation_alias="OTEL_TRACES_EXPORTER",
        description="Exporters, separated by commas: `otlp`, `console`, `none`, or names of installed exporters",
    )
    endpoint: str | None = Field(
        default=None, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT", description="Base URL of the OTLP receiver"
    )
    traces_endpoint: str | None = Field(
        default=None,
        validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        description="URL of the receiver of traces; replaces the base URL",
    )
    protocol: Literal["http/protobuf", "grpc"] = Field(
        default="http/protobuf",
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
        description="Protocol of the exporter `otlp`",
    )
    sampler: str = Field(
        default="parentbased_always_on", validation_alias="OTEL_TRACES_SAMPLER", description="Sampler of traces"
    )
    sampler_arg: str | None = Field(
        default=None, validation_alias="OTEL_TRACES_SAMPLER_ARG", description="Argument of the sampler"
    )
    schedule_delay_ms: int = Field(
        default=SCHEDULE_DELAY_MS,
        ge=1,
        validation_alias="OTEL_BSP_SCHEDULE_DELAY",
        description="Milliseconds for which a batch fills",
    )
    queue_actions: int = Field(
        default=QUEUE_ACTIONS,
        ge=1,
        validation_alias="OTEL_BSP_MAX_QUEUE_SIZE",
        description="Maximum number of settled actions that wait for export",
    )
    batch_spans: int = Field(
        default=BATCH_SPANS,
        ge=1,
        validation_alias="OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
        description="Maximum number of spans per export",
    )

    @field_validator("sampler", "protocol", mode="before")
    @classmethod
    def _normalise(cls, setting: Any) -> Any:
        return setting.strip().lower() if isinstance(setting, str) else setting

    @property
    def exporter_names(self) -> tuple[str, ...]:
        """Entry points of the exporters; empty if nothing is exported."""
        default = "otlp" if self.endpoint or self.traces_endpoint else "none"
        names = [name.strip() for name in (self.exporters or default).split(",")]
        if self.disabled or "none" in names:
            return ()
        otlp = "otlp_proto_grpc" if self.protocol == "grpc" else "otlp_proto_http"
        return tuple(dict.fromkeys(otlp if name == "otlp" else name for name in names if name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePipeline:
    """The exporters, sampler, resource and limits of exported spans."""

    exporters: tuple["SpanExporter", ...]
    sampler: "Sampler"
    resource: "Resource"
    limits: "SpanLimits"
    schedule_delay_s: float = SCHEDULE_DELAY_MS / 1000
    queue_actions: int = QUEUE_ACTIONS
    batch_spans: int = BATCH_SPANS

    def shut_down(self, *, within_s: float) -> bool:
        """Shut the exporters down, at most for `within_s` seconds. Return False if they need longer."""
        thread = threading.Thread(target=self._shut_down, name="span exporter shutdown", daemon=True)
        thread.start()
        thread.join(within_s)
        return not thread.is_alive()

    def _shut_down(self) -> None:
        for exporter in self.exporters:
            exporter.shutdown()


def open_pipeline(
    settings: OtelSettings, *, service: str, version: str, exporters: Sequence["SpanExporter"] = ()
) -> TracePipeline | None:
    """Build the pipeline of a service's spans.

    Args:
        settings: The variables of this process.
        service: Name of the service, such as `scheduler`.
        version: The resource's `service.version`.
        exporters: Exporters to use in place of those that the environment names.

    Returns:
        None if nothing is exported. Exporters are imported only otherwise: HTTP takes 12 MiB, gRPC 14 more.

    Raises:
        ValueError: A variable names an exporter or a sampler that is not installed, or has a malformed value.
    """
    names = settings.exporter_names
    if settings.disabled or not (names or exporters):
        return None
    from opentelemetry.sdk.trace import SpanLimits

    try:
        return TracePipeline(
            exporters=tuple(exporters) or tuple(_exporter_named(name) for name in names),
            sampler=_sampler_of(settings),
            resource=_resource_of(f"{SERVICE_PREFIX}-{service}", version),
            limits=SpanLimits(),
            schedule_delay_s=settings.schedule_delay_ms / 1000,
            queue_actions=settings.queue_actions,
            batch_spans=settings.batch_spans,
        )
    except ValueError:
        raise
    except Exception as error:  # an exporter is a plug-in and may raise anything
        raise ValueError(f"OTEL_EXPORTER_*: {error!r}") from error


def service_environment(environment: Mapping[str, str], service: str) -> dict[str, str]:
    """Return the OTEL_* variables for one of several services that are started from one environment.

    OTEL_SERVICE_NAME, or `service.name` of OTEL_RESOURCE_ATTRIBUTES, becomes a prefix, so that service names differ:
    `rl` becomes `rl-scheduler`.
    """
    variables = {name: value for name, value in environment.items() if name.startswith("OTEL_")}
    if propagators := variables.pop("OTEL_PROPAGATORS", ""):
        # Importing the API with an unknown propagator fails, and no service would start.
        unknown = unknown_propagators(environment)
        names = [name for name in map(str.strip, propagators.split(",")) if name not in unknown]
        variables |= {"OTEL_PROPAGATORS": ",".join(names)} if names else {}
    prefix = variables.get("OTEL_SERVICE_NAME") or _service_attribute(variables.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    return {**variables, "OTEL_SERVICE_NAME": f"{prefix or SERVICE_PREFIX}-{service}"}


def unknown_propagators(environment: Mapping[str, str]) -> list[str]:
    """Return the names in OTEL_PROPAGATORS that no installed package provides."""
    known = {"none", *entry_points(group="opentelemetry_propagator").names}
    names = (name.strip() for name in environment.get("OTEL_PROPAGATORS", "").split(","))
    return [name for name in names if name and name not in known and name.lower() != "none"]


def _service_attribute(attributes: str) -> str:
    pairs = (pair.partition("=") for pair in attributes.split(","))
    return next((value.strip() for name, _, value in pairs if name.strip() == "service.name"), "")


def _exporter_named(name: str) -> "SpanExporter":
    found = entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        known = sorted({"otlp", "none", *entry_points(group="opentelemetry_traces_exporter").names})
        raise ValueError(f"OTEL_TRACES_EXPORTER: {name!r} is not installed. Available: {', '.join(known)}")
    exporter: SpanExporter = next(iter(found)).load()()
    return exporter


def _sampler_of(settings: OtelSettings) -> "Sampler":
    """Return the SDK's sampler for a standard name, else an installed one, which receives OTEL_TRACES_SAMPLER_ARG."""
    from opentelemetry.sdk.trace import TracerProvider

    if settings.sampler in SAMPLERS:
        return TracerProvider(shutdown_on_exit=False).sampler
    found = entry_points(group="opentelemetry_traces_sampler", name=settings.sampler)
    if not found:
        raise ValueError(
            f"OTEL_TRACES_SAMPLER: {settings.sampler!r} is not installed. Available: {', '.join(sorted(SAMPLERS))}"
        )
    sampler: Sampler = next(iter(found)).load()(settings.sampler_arg)
    return sampler


def _resource_of(service_name: str, version: str) -> "Resource":
    """Return the environment's resource, merged over our defaults."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    ours = {"service.name": service_name, "service.version": version}
    named = Resource(ours).merge(found)
    if os.environ.get("OTEL_SERVICE_NAME") or not str(found.attributes["service.name"]).startswith("unknown_service"):
        return named
    return named.merge(Resource({"service.name": service_name}))
