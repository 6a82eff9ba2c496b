"""Spans on their way to a collector: OTLP over HTTP, configured by the standard OTEL_* variables.

Spans are written into the protobuf messages directly, from times that are over: the SDK's recording of live spans
would be most of what a trace costs.
"""

import gzip
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Batch", "Collector", "Link", "OtlpSettings", "Refused", "Sampler", "Unreachable", "begins_a_trace"]

RETRYABLE = frozenset({408, 429, 502, 503, 504})
SAMPLED = 1
KINDS = {"internal": Span.SPAN_KIND_INTERNAL, "producer": Span.SPAN_KIND_PRODUCER, "consumer": Span.SPAN_KIND_CONSUMER}


def _either(name: str) -> AliasChoices:
    """What is said of traces goes before what is said of all signals."""
    return AliasChoices(f"OTEL_EXPORTER_OTLP_TRACES_{name}", f"OTEL_EXPORTER_OTLP_{name}")


class OtlpSettings(BaseSettings):
    """The OpenTelemetry specification's variables. Without an endpoint nothing is exported and nothing is read."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        env_ignore_empty=True,  # as the specification has it
    )

    disabled: bool = Field(default=False, validation_alias="OTEL_SDK_DISABLED")
    exporter: Literal["otlp", "none"] = Field(default="otlp", validation_alias="OTEL_TRACES_EXPORTER")
    endpoint: str | None = Field(default=None, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    traces_endpoint: str | None = Field(default=None, validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    protocol: Literal["http/protobuf"] = Field(default="http/protobuf", validation_alias=_either("PROTOCOL"))
    headers: str = Field(default="", validation_alias=_either("HEADERS"))
    timeout_ms: int = Field(default=10_000, ge=1, validation_alias=_either("TIMEOUT"))
    compression: Literal["none", "gzip"] = Field(default="none", validation_alias=_either("COMPRESSION"))
    certificate: str | None = Field(default=None, validation_alias=_either("CERTIFICATE"))
    service_name: str | None = Field(default=None, validation_alias="OTEL_SERVICE_NAME")
    resource_attributes: str = Field(default="", validation_alias="OTEL_RESOURCE_ATTRIBUTES")
    sampler: Literal[
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ] = Field(default="parentbased_always_on", validation_alias="OTEL_TRACES_SAMPLER")
    sampler_arg: float = Field(default=1.0, ge=0, le=1, validation_alias="OTEL_TRACES_SAMPLER_ARG")

    @field_validator("headers", "resource_attributes")
    @classmethod
    def _are_pairs(cls, setting: str) -> str:
        _pairs(setting)
        return setting

    @property
    def url(self) -> str | None:
        """Where spans go; None if nowhere."""
        if self.disabled or self.exporter == "none":
            return None
        if self.traces_endpoint:
            return self.traces_endpoint
        return f"{self.endpoint.rstrip('/')}/v1/traces" if self.endpoint else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Which traces are sent: by their ids, so that every process decides alike, and by what their parents decided."""

    ratio: float
    follows_parent: bool

    @classmethod
    def of(cls, settings: OtlpSettings) -> "Sampler":
        root = settings.sampler.removeprefix("parentbased_")
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(root, settings.sampler_arg)
        return cls(ratio=ratio, follows_parent=root != settings.sampler)

    def takes(self, trace_id: bytes, *, parent: bool | None = None) -> bool:
        """`parent` is whether the remote parent was sampled; None if there is none."""
        if self.follows_parent and parent is not None:
            return parent
        return int.from_bytes(trace_id[8:], "big") < round(self.ratio * (1 << 64))


Pairs = tuple[tuple[str, str | int], ...]
Link = tuple[bytes, bytes]
"""Trace and span."""


class Batch:
    """Spans of one request, written as they come."""

    def __init__(self, resource: Iterable[KeyValue]) -> None:
        self._request = ExportTraceServiceRequest()
        of_resource = self._request.resource_spans.add()
        of_resource.resource.attributes.extend(resource)
        scope = of_resource.scope_spans.add()
        scope.scope.name = "tangram"
        self._spans = scope.spans

    def __len__(self) -> int:
        return len(self._spans)

    def add(
        self,
        name: str,
        times: tuple[datetime, datetime],
        *,
        ids: tuple[bytes, bytes, bytes | None],
        kind: str = "internal",
        attributes: Pairs = (),
        own: Pairs = (),
        error: str | None = None,
        links: Iterable[Link] = (),
    ) -> None:
        """`ids` are those of the trace, of the span and of its parent. `attributes` have few values, `own` any."""
        self._spans.append(_like(name, kind, attributes))
        span = self._spans[-1]
        span.trace_id, span.span_id, parent = ids
        if parent is not None:
            span.parent_span_id = parent
        span.start_time_unix_nano, span.end_time_unix_nano = _ns(times[0]), _ns(times[1])
        for key, value in own:
            span.attributes.append(_attribute(key, value))
        if error is not None:
            span.status.code, span.status.message = Status.STATUS_CODE_ERROR, error
        for trace_id, span_id in links:
            span.links.add(trace_id=trace_id, span_id=span_id)

    def say_state(self, tracestate: str) -> None:
        """Of the last span's trace."""
        self._spans[-1].trace_state = tracestate

    def written(self) -> bytes:
        content: bytes = self._request.SerializeToString()
        return content


class Unreachable(Exception):
    """The collector did not take them now; it may later."""


class Refused(Exception):
    """The collector will not take these."""


class Collector:
    """One connection pool to where spans go."""

    def __init__(self, settings: OtlpSettings, *, service: str, version: str) -> None:
        if settings.url is None:
            raise ValueError("there is no endpoint")
        self._url = settings.url
        self._gzip = settings.compression == "gzip"
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_ms / 1000)
        self._headers = _pairs(settings.headers) | {"content-type": "application/x-protobuf"}
        if self._gzip:
            self._headers["content-encoding"] = "gzip"
        self._certificate = settings.certificate
        self._resource = _resource(settings, service=service, version=version)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        verify = ssl.create_default_context(cafile=self._certificate) if self._certificate else True
        connector = aiohttp.TCPConnector(limit=2, ssl=verify)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout, connector=connector)

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    def batch(self) -> Batch:
        return Batch(self._resource)

    async def send(self, batch: Batch) -> int:
        """How many it took. Raises `Unreachable` or `Refused`."""
        if self._session is None:
            raise RuntimeError("start() was not called")
        content = batch.written()
        return len(batch) - await self._post(self._session, gzip.compress(content) if self._gzip else content)

    async def _post(self, session: aiohttp.ClientSession, content: bytes) -> int:
        """How many were rejected."""
        try:
            async with session.post(self._url, data=content) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{type(error).__name__}") from error
        if response.status in RETRYABLE:
            raise Unreachable(f"it answered {response.status}")
        if response.status >= 300:
            raise Refused(f"it answered {response.status}")
        if response.content_type != "application/x-protobuf":
            return 0
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)


def begins_a_trace(traceparent: str) -> tuple[bytes, bytes]:
    """Trace and span of a traceparent that this service made."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return bytes.fromhex(trace_id), bytes.fromhex(span_id)


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


@lru_cache(maxsize=1024)
def _like(name: str, kind: str, attributes: Pairs) -> Span:
    """What many spans have in common: copying it is cheaper than writing it again."""
    return Span(name=name, kind=KINDS[kind], flags=SAMPLED, attributes=[_attribute(*pair) for pair in attributes])


def _attribute(name: str, value: str | int) -> KeyValue:
    said = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
    return KeyValue(key=name, value=said)


def _resource(settings: OtlpSettings, *, service: str, version: str) -> list[KeyValue]:
    """What the variables say goes before what we say, and the service's name before the other attributes."""
    about = {"service.name": service, "service.version": version} | _pairs(settings.resource_attributes)
    if settings.service_name:
        about["service.name"] = settings.service_name
    return [_attribute(name, value) for name, value in about.items()]


def _pairs(text: str) -> dict[str, str]:
    """`key1=value1,key2=value2`, percent-encoded."""
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{pair.partition('=')[0]!r} is no key=value")
        found[unquote(name.strip())] = unquote(value.strip())
    return found
