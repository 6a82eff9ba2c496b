"""Settings of every service, validated once at start-up, frozen and passed in. No module reads the environment."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from arl_kit.failpoints import Failpoints
from arl_kit.service_tokens import TokenIssuer, TokenVerifier

__all__ = ["ServiceSettings", "load_settings"]

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class ServiceSettings(BaseSettings):
    """The settings of a service, from `TANGRAM_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="TANGRAM_", frozen=True, extra="ignore")

    host: str = Field(default="127.0.0.1", description="Address on which this service listens")
    port: int = Field(ge=1, le=65535, description="Port on which this service listens")
    database_url: SecretStr = Field(description="Database URL `postgresql://…` with the role of this service")
    service_token: SecretStr = Field(
        min_length=16, description="Secret from which this service derives the keys of its calls to other services"
    )
    caller_keys: dict[str, Annotated[SecretStr, Field(min_length=32)]] = Field(
        default_factory=dict,
        description="Keys of the services that may call this one, by name, made for this receiver only. All other"
        " callers are refused",
    )
    metrics_token_hash: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 (hex) of the token that `/metrics` requires. Absent: every request is refused. The gateway"
        " requires API keys instead",
    )
    pool_size: int = Field(default=6, ge=1, le=100, description="Maximum number of pooled database connections")
    log_level: str = Field(default="INFO", description="Lowest level of log messages that are written, such as DEBUG")
    failpoints: str = Field(
        default="",
        description="Failpoints for tests: `name=kill:N,…` ends this process at these points. Empty in production",
    )

    @field_validator("failpoints")
    @classmethod
    def _check_failpoints(cls, setting: str) -> str:
        Failpoints(setting)
        return setting

    def token_issuer(self, caller: str) -> TokenIssuer:
        """Return the issuer of this service's tokens; `caller` is its name."""
        return TokenIssuer(caller, self.service_token.get_secret_value())

    def token_verifier(self, audience: str) -> TokenVerifier:
        """Return the check of tokens of this service's callers."""
        return TokenVerifier(audience, {name: key.get_secret_value() for name, key in self.caller_keys.items()})


def load_settings(cls: type[SettingsT], *, fallback: SettingsT | None = None) -> SettingsT:
    """Return the settings from the environment, or `fallback` if they are invalid. Prints one sentence per mistake.

    A missing variable is read from the file in TANGRAM_SECRETS_DIR that has its name in lower case. Exits with code 2
    if there is no fallback, or if a JSON value cannot be parsed.
    """
    try:
        return cls(_secrets_dir=os.environ.get("TANGRAM_SECRETS_DIR"))
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            _print_error(problem["loc"], problem["msg"])
        if fallback is not None:
            return fallback
        raise SystemExit(2) from None
    except SettingsError as error:
        # The JSON of a list or an object cannot be parsed. The error text names the field.
        named = re.search(r'"(\w+)"', str(error))
        why = f"is not valid JSON: {error.__cause__}" if isinstance(error.__cause__, ValueError) else str(error)
        _print_error((named[1],) if named is not None else (), why)
        raise SystemExit(2) from None


def _print_error(location: Sequence[int | str], message: str) -> None:
    """Print a mistake with the name of its variable and the path inside its value."""
    field, *inside = map(str, location or ("*",))
    name = field.upper() if field.upper().startswith("OTEL_") else f"TANGRAM_{field.upper()}"
    where = f"{name}: {'.'.join(inside)}" if inside else name
    print(f"{where}: {message.removeprefix('Value error, ')}", file=sys.stderr)  # noqa: T201 - nothing is set up yet
