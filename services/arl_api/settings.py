import math
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from arl_core.rate import Rate
from arl_manager.remotes import Address, Key
from arl_manager.settings import ManagerSettings
from arl_wire.calls import EndpointName, HeaderName, Method

__all__ = ["ApiSettings", "EndpointSettings"]

MAX_KEY_FILE = 64 << 10


class EndpointSettings(BaseModel):
    """An external HTTP API, what opens it, and how much of it there is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Address = Field(description="All requests go below it")
    key: Key | None = Field(default=None, description="Sent as `Authorization: Bearer`")
    key_file: Path | None = Field(default=None, description="That has the key; instead of `key`")
    headers: dict[HeaderName, SecretStr] = Field(
        default_factory=dict, description="Sent with every request, whatever the action says; taken for secrets"
    )
    query: dict[str, SecretStr] = Field(
        default_factory=dict, description="Parameters, likewise, for what wants its key there"
    )
    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("GET", "HEAD", "POST")
    concurrency: int = Field(default=16, ge=1, le=4096, description="Calls in flight at once, at most")
    per_s: float | None = Field(
        default=None, gt=0, le=1e6, allow_inf_nan=False, description="Requests a second, at most; left out, any number"
    )
    burst: int | None = Field(
        default=None, ge=1, le=10**6, description="Requests at once after a pause; left out, those of a second"
    )
    tries: int = Field(default=4, ge=1, le=10, description="Requests for one attempt of an action, at most")
    idempotent: bool = Field(
        default=False, description="No request does harm when it is sent again, whatever its method: searches, say"
    )

    @field_validator("headers", "query")
    @classmethod
    def _can_be_sent(cls, values: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in values.items():
            if not (value.get_secret_value().isascii() and value.get_secret_value().isprintable()):
                raise ValueError(f"{name} has to be printable ASCII")
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.key is not None and self.key_file is not None:
            raise ValueError("give one of key and key_file")
        if (self.key or self.key_file) and "authorization" in map(str.lower, self.headers):
            raise ValueError("a key is sent as `Authorization`, which headers have already")
        if self.burst is not None and self.per_s is None:
            raise ValueError("burst is of a rate; give per_s too")
        return self

    @property
    def rate(self) -> Rate | None:
        if self.per_s is None:
            return None
        return Rate(self.per_s, self.burst or max(1, math.ceil(self.per_s)))

    def with_key(self) -> "EndpointSettings":
        """With what its file says. Raises ValueError where that can't be read or is no key."""
        if self.key_file is None:
            return self
        try:
            with self.key_file.open() as file:
                said = file.read(MAX_KEY_FILE)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"key_file {self.key_file}: {type(error).__name__}: it can't be read") from None
        fields = {name: getattr(self, name) for name in self.model_fields_set - {"key_file"}}
        try:
            return EndpointSettings(**fields, key=SecretStr(said))
        except ValidationError:
            raise ValueError(f"key_file {self.key_file}: its key has to be printable ASCII, and not empty") from None


class ApiSettings(ManagerSettings):
    node_name: str = Field(default_factory=lambda: f"{socket.gethostname()}-api", min_length=1, max_length=128)
    endpoints: dict[EndpointName, EndpointSettings] = Field(
        default_factory=dict, max_length=256, description="As a JSON object by the names that actions have for them"
    )
    grace_s: float = Field(default=10.0, ge=0, le=20, description="What is under way has so long to end when it stops")

    @field_validator("endpoints")
    @classmethod
    def _have_their_keys(cls, endpoints: dict[str, EndpointSettings]) -> dict[str, EndpointSettings]:
        return {name: _with_key(name, each) for name, each in endpoints.items()}


def _with_key(name: str, endpoint: EndpointSettings) -> EndpointSettings:
    try:
        return endpoint.with_key()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
