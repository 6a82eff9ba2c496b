"""Settings of every service, validated once at start-up, frozen and passed in. No module reads the environment."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from arl_kit.failpoints import Failpoints
from arl_kit.service_tokens import TokenIssuer, TokenVerifier
from arl_wire.cells import MAX_CELL

__all__ = ["CHECK_SETTINGS", "EXIT_BAD_SETTINGS", "ProcessSettings", "ServiceSettings", "load_settings"]

CHECK_SETTINGS = "--check-settings"
"""Argument with which a process only checks its settings: exit code 0, or `EXIT_BAD_SETTINGS` with the mistakes."""
EXIT_BAD_SETTINGS = 2
MAX_SHOWN_CHARACTERS = 100

_LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")

_JSON_STARTS = ("{", "[", '"')

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class ProcessSettings(BaseSettings):
    """The settings of every process that serves HTTP, from `TANGRAM_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="TANGRAM_", frozen=True, extra="ignore")

    host: str = Field(default="127.0.0.1", description="Address on which this service listens")
    port: int = Field(ge=1, le=65535, description="Port on which this service listens")
    metrics_token_hash: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 (hex) of the token that `/metrics` requires. Absent: every request is refused. The gateway"
        " requires API keys instead",
    )
    log_level: str = Field(default="INFO", description="Lowest level of log messages that are written, such as DEBUG")

    @field_validator("log_level")
    @classmethod
    def _check_log_level(cls, setting: str) -> str:
        if setting.upper() not in _LOG_LEVELS:
            raise ValueError(f"must be one of {', '.join(_LOG_LEVELS)}")
        return setting


class ServiceSettings(ProcessSettings):
    """The settings of a service with a database."""

    database_url: SecretStr = Field(description="Database URL `postgresql://…` with the role of this service")
    service_token: SecretStr = Field(
        min_length=16, description="Secret from which this service derives the keys of its calls to other services"
    )
    caller_keys: dict[str, Annotated[SecretStr, Field(min_length=32)]] = Field(
        default_factory=dict,
        description="Keys of the services that may call this one, by name, made for this receiver only. All other"
        " callers are refused",
    )
    pool_size: int = Field(default=6, ge=1, le=100, description="Maximum number of pooled database connections")
    cell: int = Field(
        default=0,
        ge=0,
        le=MAX_CELL,
        description="Number of this cell, which its ids contain. 0: the system is not one of several cells. All"
        " services of a system have the same number, and it never changes",
    )
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

    def token_verifier(self, audience: str, derive_key: Callable[[str], str | None] | None = None) -> TokenVerifier:
        """Return the check of tokens of this service's callers. `derive_key` is that of `TokenVerifier`."""
        keys = {name: key.get_secret_value() for name, key in self.caller_keys.items()}
        return TokenVerifier(audience, keys, derive_key=derive_key)


def load_settings(
    cls: type[SettingsT],
    *,
    fallback: SettingsT | None = None,
    find_problems: Callable[[SettingsT], Iterable[str]] = lambda settings: (),
) -> SettingsT:
    """Return the settings from the environment, or `fallback` if they are invalid. Prints one sentence per mistake.

    A missing variable is read from the file in TANGRAM_SECRETS_DIR that has its name in lower case. Without a fallback,
    a mistake ends the process with `EXIT_BAD_SETTINGS`. With the argument `CHECK_SETTINGS`, the process ends after the
    check, which includes `find_problems`.
    """
    settings, problems = _read_settings(cls)
    is_check = CHECK_SETTINGS in sys.argv[1:]
    if settings is not None and is_check:
        problems.extend(find_problems(settings))
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201 - nothing is set up yet
    if settings is None and fallback is not None:
        return fallback
    if settings is None or problems:
        raise SystemExit(EXIT_BAD_SETTINGS)
    if is_check:
        raise SystemExit(0)
    return settings


def _read_settings(cls: type[SettingsT]) -> tuple[SettingsT | None, list[str]]:
    """Return the settings, or None and a sentence per mistake."""
    try:
        return cls(_secrets_dir=os.environ.get("TANGRAM_SECRETS_DIR")), []
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        return None, [_problem(cls, each["loc"], each["msg"]) for each in found]
    except SettingsError as error:
        # The JSON of a list or an object cannot be parsed. The error text names the field.
        named = re.search(r'"(\w+)"', str(error))
        why = f"is not valid JSON: {error.__cause__}" if isinstance(error.__cause__, ValueError) else str(error)
        problem = _problem(cls, (named[1],) if named is not None else (), why)
        variable = f"TANGRAM_{named[1].upper()}" if named is not None else ""
        if os.environ.pop(variable, None) is None:
            return None, [problem]
        # The other variables are checked without this one.
        return None, [problem, *_read_settings(cls)[1]]


def _problem(cls: type[BaseSettings], location: Sequence[int | str], message: str) -> str:
    """Return a mistake with the name of its variable, its value unless that may be secret, and the path inside it."""
    field, *inside = map(str, location or ("*",))
    name = field.upper() if field.upper().startswith("OTEL_") else f"TANGRAM_{field.upper()}"
    message = message.removeprefix("Value error, ")
    if inside:
        return f"{name}: {'.'.join(inside)}: {message}"
    value = os.environ.get(name)
    known = cls.model_fields.get(field)
    if value is None or known is None or value.lstrip()[:1] in _JSON_STARTS or _may_contain_secrets(known.annotation):
        return f"{name}: {message}"
    return f"{name} is {value[:MAX_SHOWN_CHARACTERS]!r}: {message}"


def _may_contain_secrets(annotation: Any) -> bool:
    """Return True for secrets, objects and models, which may contain keys."""
    if "Secret" in str(annotation):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    origin = get_origin(annotation)
    is_mapping = annotation is dict or (isinstance(origin, type) and issubclass(origin, Mapping))
    return is_mapping or any(_may_contain_secrets(each) for each in get_args(annotation))
