"""The operator's settings of registries: credentials, mirrors, proxies and plain HTTP."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from arl_core.images.references import DEFAULT_REGISTRY, ImageReference

__all__ = ["InvalidRegistries", "RegistryBook", "RegistryEndpoint", "RegistrySettings", "read_registries"]

_DOCKER_HUB_HOST = "registry-1.docker.io"


class InvalidRegistries(ValueError):
    """A file of registries that cannot be used. The message names the field and never contains a secret."""


class RegistrySettings(BaseModel):
    """The settings of one registry."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    token: SecretStr | None = None
    """Bearer token that is sent as it is."""
    token_file: Path | None = None
    plain_http: bool = False
    """True to use HTTP without TLS."""
    mirrors: tuple[str, ...] = ()
    """Base URLs that are tried before the registry, such as `https://mirror.example`."""
    proxy: SecretStr | None = None
    """URL of a proxy. Absent: the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY apply."""
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _check_credentials(self) -> "RegistrySettings":
        has_password = self.password is not None or self.password_file is not None
        if has_password != (self.username is not None):
            raise ValueError("username and password (or password_file) must be given together")
        if has_password and (self.token is not None or self.token_file is not None):
            raise ValueError("token must not be given together with a password")
        for mirror in self.mirrors:
            if urlsplit(mirror).scheme not in ("http", "https") or not urlsplit(mirror).netloc:
                raise ValueError("mirrors must be URLs such as https://mirror.example")
        return self


class _RegistriesFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    others: Literal["allow", "deny"] = "allow"
    """Whether nodes pull from registries that the file does not name."""
    registries: Mapping[str, RegistrySettings] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEndpoint:
    """One address of a registry or mirror, with the credentials for it."""

    url: str
    basic: tuple[str, str] | None = None
    token: str | None = None
    proxy: str | None = None
    ca_file: Path | None = None

    @property
    def allows_plain_http(self) -> bool:
        """Return True if the operator named this address with HTTP."""
        return self.url.startswith("http://")


class RegistryBook:
    """The settings of all registries."""

    def __init__(self, content: _RegistriesFile | None = None) -> None:
        self._content = content or _RegistriesFile()

    def endpoints(self, image: ImageReference) -> tuple[RegistryEndpoint, ...]:
        """Return the addresses to pull an image from: the mirrors, then its registry. Empty if it is not allowed."""
        own = self._content.registries.get(image.registry)
        if own is None and self._content.others == "deny":
            return ()
        settings = own or RegistrySettings()
        host = _DOCKER_HUB_HOST if image.registry == DEFAULT_REGISTRY else image.registry
        origin = f"{'http' if settings.plain_http else 'https'}://{host}"
        mirrors = (
            _endpoint(mirror.rstrip("/"), self._content.registries.get(urlsplit(mirror).netloc) or RegistrySettings())
            for mirror in settings.mirrors
        )
        return (*mirrors, _endpoint(origin, settings))


def read_registries(path: Path | None) -> RegistryBook:
    """Read a file of registries in TOML. Raises InvalidRegistries."""
    if path is None:
        return RegistryBook()
    try:
        return RegistryBook(_RegistriesFile.model_validate(tomllib.loads(path.read_text())))
    except OSError as error:
        raise InvalidRegistries(f"file of registries {path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidRegistries(f"file of registries {path} is not TOML: {error}") from None
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidRegistries(f"file of registries {path}: {field}: {first['msg']}") from None


def _endpoint(url: str, settings: RegistrySettings) -> RegistryEndpoint:
    password = _secret(settings.password, settings.password_file)
    return RegistryEndpoint(
        url=url,
        basic=(settings.username, password) if settings.username is not None and password is not None else None,
        token=_secret(settings.token, settings.token_file),
        proxy=settings.proxy.get_secret_value() if settings.proxy is not None else None,
        ca_file=settings.ca_file,
    )


def _secret(value: SecretStr | None, path: Path | None) -> str | None:
    if path is None:
        return value.get_secret_value() if value is not None else None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InvalidRegistries(f"secret file {path} cannot be read: {error.strerror}") from None
