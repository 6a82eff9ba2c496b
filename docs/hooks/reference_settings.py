"""The page `reference/settings`: every environment variable, from the settings model of each process."""

import importlib
import inspect
import json
import socket
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from markdown_text import anchor, cell, code, table
from pydantic import AliasChoices, BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from arl_cell_router.settings import CellRouterSettings
from arl_kit.settings import ServiceSettings
from arl_kit.telemetry.otel import OtelSettings
from arl_local.env_routing import FORWARDED_SETTINGS
from arl_local.process_plan import SERVICES
from arl_local.provision import ProvisionSettings
from arl_node.settings import ManagerSettings

__all__ = ["models", "render", "variables"]

INTRO = """\
# Settings

Every process reads its settings from environment variables when it starts, and exits with code 2 if one is wrong. If
`TANGRAM_SECRETS_DIR` names a directory, a variable that is not set is read from the file there that has its name in
lower case.

Set a variable with ✓ in the column **up** in the environment of `tangram up`. It passes the variable to the process.
Before it starts anything, `tangram up` lets every process check the variables that you set. It names each wrong
variable and what is allowed, and ends with code 2. It shows the value unless that may be secret.
`tangram up` sets the other variables itself; you need them only for a process that you start yourself, see
[Install](../operate/install.md). A list or an object is JSON.
"""
CLIENT_VARIABLES = {
    "TANGRAM_URL": ("", "Address of the gateway, for the command line and the Python client."),
    "TANGRAM_API_KEY": ("", "API key, for the command line and the Python client."),
    "TANGRAM_CELL_HEADER": (
        "the router chooses",
        "Cell to which a router of several cells forwards all requests, as `tangram --cell`.",
    ),
    "TANGRAM_DIR": (
        "`$XDG_STATE_HOME/tangram`, else `~/.local/state/tangram`",
        "State directory of the system on this machine. One system per directory.",
    ),
    "TANGRAM_DATABASE_URL": ("embedded Postgres", "`tangram up` uses this Postgres, version 15 or newer."),
    "TANGRAM_TEMPLATES_DIR": ("`templates` in the state directory", "Directory of imported images."),
    "TANGRAM_DRIVER": ("`auto`", "Default of `tangram up --driver`."),
    "TANGRAM_SECRETS_DIR": ("", "Directory with one file per variable, for variables that are not set."),
    "TANGRAM_DEBUG": ("", "If it is set, `tangram` prints the traceback of an unexpected error."),
}
"""Default and description of the variables that no model declares."""
LAUNCHER_VARIABLES = {
    "TANGRAM_LAUNCHER_SOCKET": ("", "Absolute path of the socket on which the launcher listens. Required."),
    "TANGRAM_LAUNCHER_DIR": ("", "Absolute path of the directory with the sandboxes. Required."),
    "TANGRAM_NODE_NAME": ("`node`", "Name of the node, without `/`."),
    "TANGRAM_DRIVER": ("`auto`", "What confines actions: `auto`, `namespaces`, `landlock` or `unsafe-local`."),
    "TANGRAM_TEMPLATES_DIR": ("", "Directory of imported images. Without it, only the template `host` exists."),
    "TANGRAM_SANDBOX_POOL_SIZE": ("`8`", "Environments that are created before an action needs them, 0 to 1000."),
    "TANGRAM_AGENT": (
        "`auto`",
        "Program that runs as process 1 of an environment: `auto`, `native` (C, needs a compiler) or `python`.",
    ),
    "TANGRAM_NETWORK_PRIVATE": (
        "",
        "Networks with private addresses that environments may reach, separated by commas, such as `10.1.0.0/16`.",
    ),
    "TANGRAM_NETWORK_RESOLVERS": (
        "of `/etc/resolv.conf`",
        "Name servers for environments, `ADDRESS` or `ADDRESS:PORT`, separated by commas.",
    ),
}
TITLES = {
    "gateway": "Gateway",
    "admission": "Admission",
    "scheduler": "Scheduler",
    "cpu": "CPU node",
    "gpu": "GPU node",
    "api": "API broker",
}
HEADER = ["Variable", "Type", "Default", "up", "Description"]


def models() -> dict[str, type[BaseSettings]]:
    """Return the settings model of each service."""
    return {service: _settings_class(service) for service in SERVICES}


def variables(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every variable that the model reads, with its field."""
    prefix = str(model.model_config.get("env_prefix", ""))
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [alias or f"{prefix}{name}".upper()]
        yield from ((str(each), field) for each in names)


def render() -> str:
    parts = [
        INTRO,
        f"## Command line and clients {anchor('client')}\n",
        _plain_table(CLIENT_VARIABLES),
        f"## Every service {anchor('service')}\n",
        _model_table(ServiceSettings, inherited=BaseSettings, process="gateway"),
        f"## Every node {anchor('node')}\n",
        "CPU nodes, GPU nodes and the API broker have these settings too.\n",
        _model_table(ManagerSettings, inherited=ServiceSettings, process="cpu"),
    ]
    for service, model in sorted(models().items(), key=lambda entry: list(TITLES).index(entry[0])):
        inherited = ManagerSettings if issubclass(model, ManagerSettings) else ServiceSettings
        parts += [
            f"## {TITLES[service]} {anchor(service)}\n",
            f"`python -m arl_{service}`\n",
            _model_table(model, inherited=inherited, process=service),
            *_entry_tables(model),
        ]
    parts += [
        f"## Cell router {anchor('cell-router')}\n",
        "`python -m arl_cell_router`, which `tangram router` runs. See [Cells](../operate/cells.md).\n",
        _model_table(CellRouterSettings, inherited=BaseSettings, process=""),
        f"## CPU launcher {anchor('cpu-launcher')}\n",
        "`python -m arl_cpu.launcher`\n",
        _plain_table(LAUNCHER_VARIABLES, process="cpu-launcher"),
        f"## Provisioning {anchor('provision')}\n",
        "`python -m arl_local.provision`\n",
        _model_table(ProvisionSettings, inherited=BaseSettings, process=""),
        f"## Traces {anchor('traces')}\n",
        "The OpenTelemetry SDK in the scheduler reads every other `OTEL_*` variable itself.\n",
        _model_table(OtelSettings, inherited=BaseSettings, process=""),
    ]
    return "\n".join(parts)


def _settings_class(service: str) -> type[BaseSettings]:
    module = importlib.import_module(f"arl_{service}.settings")
    [found] = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, ServiceSettings) and cls.__module__ == module.__name__
    ]
    return found


def _plain_table(rows: Mapping[str, tuple[str, str]], *, process: str = "") -> str:
    return table(
        [HEADER[0], *HEADER[2:]] if process else [HEADER[0], HEADER[2], HEADER[4]],
        (
            [code(name), default, *([_forwarded(name, process)] if process else []), text]
            for name, (default, text) in rows.items()
        ),
    )


def _model_table(model: type[BaseModel], *, inherited: type[BaseModel], process: str) -> str:
    rows = []
    for name, field in variables(model):
        own = next(key for key, each in model.model_fields.items() if each is field)
        if own not in inherited.model_fields or own in inspect.get_annotations(model):
            rows.append(_row(name, own, field, _forwarded(name, process)))
    if not any(row[3] for row in rows):
        return table([*HEADER[:3], HEADER[4]], ([*row[:3], row[4]] for row in rows))
    return table(HEADER, rows)


def _entry_tables(model: type[BaseModel]) -> Iterator[str]:
    """Yield a table for each setting that is an object of objects."""
    for name, field in variables(model):
        for entry in _nested_models(field.annotation):
            rows = [_row(key, key, each, "") for key, each in entry.model_fields.items()]
            yield f"Fields of an entry of `{name}`:\n"
            yield table(["Field", *HEADER[1:3], HEADER[4]], ([*row[:3], row[4]] for row in rows))


def _row(shown: str, name: str, field: FieldInfo, forwarded: str) -> list[str]:
    return [code(shown), _type(field.annotation), _default(field), forwarded, cell(field.description or "")]


def _forwarded(variable: str, process: str) -> str:
    return "✓" if variable.removeprefix("TANGRAM_").lower() in FORWARDED_SETTINGS.get(process, ()) else ""


def _nested_models(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _nested_models(each)]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "not set"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, str) and value.startswith(socket.gethostname()):
        value = value.replace(socket.gethostname(), "HOSTNAME")
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | list | dict):
        return code(json.dumps(value))
    if isinstance(value, tuple):
        return code(",".join(map(str, value)))
    return code(f"{value:g}" if isinstance(value, float) else str(value)) or "empty"


def _type(annotation: Any) -> str:
    """Return the type as a reader of a shell script needs it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return _type(next(each for each in arguments if each is not NoneType))
    if origin is Literal:
        return " ".join(code(str(each)) for each in arguments)
    if origin in (tuple, list):
        return "list"
    if origin is dict:
        return "object"
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return " ".join(code(str(each.value)) for each in annotation)
    names = {bool: "boolean", int: "integer", float: "number", str: "string", SecretStr: "secret", Path: "path"}
    return names.get(annotation, "object")
