import math
import socket
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from arl_core.control.rate_limits import RateLimit
from arl_node.settings import ManagerSettings, UpstreamKey, UpstreamUrl
from arl_wire.actions.action import Name
from arl_wire.calls import CONNECTION_HEADERS, EndpointName, HeaderName, Method

__all__ = ["ApiSettings", "EndpointSettings"]

MAX_KEY_FILE_CHARACTERS = 64 << 10


class EndpointSettings(BaseModel):
    """An external HTTP API, its credentials and its limits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: UpstreamUrl = Field(description="Base URL of the API; all requests go below it")
    key: UpstreamKey | None = Field(default=None, description="API key, sent as `Authorization: Bearer`")
    key_file: Path | None = Field(default=None, description="File that contains the API key; replaces `key`")
    headers: dict[HeaderName, str] = Field(
        default_factory=dict, description="Headers of every request; they replace headers of the action"
    )
    query: dict[str, str] = Field(
        default_factory=dict, description="Query parameters of every request; they replace parameters of the action"
    )
    secret_headers: dict[HeaderName, SecretStr] = Field(
        default_factory=dict, description="Like `headers`, but hidden in responses"
    )
    secret_query: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Like `query`, but hidden in responses, for APIs that expect their key in the query",
    )
    methods: tuple[Method, ...] = Field(
        default=("GET", "HEAD", "POST"), min_length=1, description="HTTP methods that actions may use"
    )
    projects: tuple[Name, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Projects that may call the endpoint. Absent: all projects",
    )
    concurrency: int = Field(default=16, ge=1, le=4096, description="Maximum number of concurrent calls")
    rate_per_s: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="Maximum number of requests per second. Absent: no limit",
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="Maximum number of requests in a burst after a pause. Absent: the requests of one second",
    )
    max_attempts: int = Field(
        default=4,
        ge=1,
        le=10,
        description="Maximum number of requests for one attempt of an action that the endpoint may have executed."
        " Refused requests, such as those with status 429, are retried until `timeout_s`",
    )
    max_body_kib: int = Field(
        default=1024,
        ge=1,
        le=16 << 10,
        description="Maximum size of a stored response body in KiB; further bytes are only counted",
    )
    idempotent: bool = Field(
        default=False,
        description="True if any request may be sent twice without harm, regardless of its method, for example for"
        " searches",
    )

    @field_validator("headers", "query", "secret_headers", "secret_query")
    @classmethod
    def _check_printable(cls, values: dict[str, str] | dict[str, SecretStr]) -> dict[str, str] | dict[str, SecretStr]:
        for name, value in values.items():
            text = _reveal(value)
            if not (text.isascii() and text.isprintable()):
                raise ValueError(f"{name} must be printable ASCII")
        return values

    @field_validator("headers", "secret_headers")
    @classmethod
    def _check_header_names(
        cls, headers: dict[str, str] | dict[str, SecretStr]
    ) -> dict[str, str] | dict[str, SecretStr]:
        if wrong := [name for name in headers if name.lower() in CONNECTION_HEADERS]:
            raise ValueError(f"{', '.join(wrong)}: set by the broker; remove it")
        return headers

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.key is not None and self.key_file is not None:
            raise ValueError("give only one of key and key_file")
        if self.burst is not None and self.rate_per_s is None:
            raise ValueError("burst needs rate_per_s")
        names = [*map(str.lower, self.headers), *map(str.lower, self.secret_headers)]
        if self.key is not None or self.key_file is not None:
            names.append("authorization")
        if twice := {name for name in names if names.count(name) > 1} | (self.query.keys() & self.secret_query.keys()):
            raise ValueError(f"{', '.join(sorted(twice))}: given twice. A key is sent as `Authorization`")
        return self

    @property
    def own_headers(self) -> dict[str, str]:
        """Return the configured headers, with the credentials."""
        bearer = {"Authorization": f"Bearer {_reveal(self.key)}"} if self.key is not None else {}
        return {**self.headers, **_reveal_all(self.secret_headers), **bearer}

    @property
    def own_query(self) -> dict[str, str]:
        """Return the configured query parameters, with the credentials."""
        return {**self.query, **_reveal_all(self.secret_query)}

    @property
    def secrets(self) -> list[str]:
        """Return the secrets as they are sent."""
        key = [_reveal(self.key)] if self.key is not None else []
        return [*key, *_reveal_all(self.secret_headers).values(), *_reveal_all(self.secret_query).values()]

    @property
    def max_body_bytes(self) -> int:
        """Return the maximum bytes of a response body that are kept."""
        return self.max_body_kib << 10

    @property
    def rate(self) -> RateLimit | None:
        """Return the rate limit, or None if the rate is not limited."""
        if self.rate_per_s is None:
            return None
        return RateLimit(self.rate_per_s, self.burst or max(1, math.ceil(self.rate_per_s)))

    def with_key(self) -> "EndpointSettings":
        """Return the settings with the key from its file.

        Raises ValueError if the file is unreadable or has no valid key.
        """
        if self.key_file is None:
            return self
        try:
            with self.key_file.open() as file:
                said = file.read(MAX_KEY_FILE_CHARACTERS)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"key_file {self.key_file} cannot be read: {type(error).__name__}") from None
        fields = {name: getattr(self, name) for name in self.model_fields_set - {"key_file"}}
        try:
            return EndpointSettings(**fields, key=SecretStr(said))
        except ValidationError:
            raise ValueError(f"key_file {self.key_file}: the key must be printable ASCII and not empty") from None


class ApiSettings(ManagerSettings):
    """The settings of a broker node."""

    node_name: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-api",
        min_length=1,
        max_length=128,
        description="Name of the node; it is unique",
    )
    endpoints: dict[EndpointName, EndpointSettings] = Field(
        default_factory=dict,
        max_length=256,
        description="Endpoints as a JSON object: name to settings. Actions use these names",
    )
    grace_s: float = Field(
        default=10.0, ge=0, le=20, description="Seconds that calls in flight have to end when the broker stops"
    )

    @field_validator("endpoints")
    @classmethod
    def _load_keys(cls, endpoints: dict[str, EndpointSettings]) -> dict[str, EndpointSettings]:
        return {name: _load_key(name, each) for name, each in endpoints.items()}


def _reveal(value: str | SecretStr) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _reveal_all(values: dict[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in values.items()}


def _load_key(name: str, endpoint: EndpointSettings) -> EndpointSettings:
    try:
        return endpoint.with_key()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
