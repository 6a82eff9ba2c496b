"""Settings of every service, validated once at start-up, frozen and passed in. No module reads the environment."""

import os
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from arl_kit.failpoints import Failpoints

__all__ = ["ServiceSettings", "load_settings"]

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class ServiceSettings(BaseSettings):
    """The settings of a service, from `TANGRAM_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="TANGRAM_", frozen=True, extra="ignore")

    host: str = Field(default="127.0.0.1", description="Address on which this service listens")
    port: int = Field(ge=1, le=65535, description="Port on which this service listens")
    database_url: SecretStr = Field(description="Database URL `postgresql://…` with the role of this service")
    service_token: SecretStr = Field(min_length=16, description="Token with which this service calls other services")
    caller_token_hashes: dict[str, str] = Field(
        default_factory=dict,
        description="SHA-256 (hex) of the token of each service that may call this one, by name. All other callers"
        " are refused",
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

    def caller_of(self, token: str) -> str | None:
        """Return the service that this token belongs to, or None."""
        digest = sha256(token.encode()).hexdigest()
        return next((name for name, known in self.caller_token_hashes.items() if compare_digest(digest, known)), None)


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
