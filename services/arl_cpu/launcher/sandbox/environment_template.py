"""The use of a template by an environment: layers for the agent, and variables for every process."""

import os
from pathlib import Path
from typing import Any

from arl_core.images.references import is_image_name
from arl_cpu.launcher.isolation.drivers import IsolationDriver
from arl_cpu.launcher.isolation.users import HOST_USER, ROOT
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.sandbox.request_builder import host_variables
from arl_cpu.templates.template import HOST_TEMPLATE
from arl_cpu.templates.template_store import LAYER_TREE, OpenTemplate, TemplateStore, UnknownTemplate

__all__ = [
    "TemplateUnavailable",
    "choose_user",
    "has_program",
    "layers_message",
    "open_template",
    "program_variables",
    "template_home",
]

# Defaults of container runtimes.
_VARIABLES = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108  # private to the environment
}


class TemplateUnavailable(Exception):
    """A template that this node cannot use. The message gives the reason."""


def open_template(store: TemplateStore | None, driver: IsolationDriver, name: str) -> OpenTemplate | None:
    """Open a template, or return None for `host`. Its layers stay until it is closed. Raises TemplateUnavailable."""
    if name == HOST_TEMPLATE:
        return None
    if not driver.has_templates:
        raise TemplateUnavailable(
            f"the {driver.name} driver supports only the template `host`; {name!r} needs the namespaces driver"
        )
    if store is None:
        raise TemplateUnavailable(f"template {name!r} is not available on this node: TANGRAM_TEMPLATES_DIR is not set")
    try:
        return store.open(name)
    except UnknownTemplate:
        if is_image_name(name):
            raise TemplateUnavailable(f"image {name} was removed from this node; submit the action again") from None
        there = ", ".join(
            [HOST_TEMPLATE, *(each.name for each in store.list_templates() if not is_image_name(each.name))]
        )
        raise TemplateUnavailable(f"template {name!r} is not available on this node. Available: {there}") from None
    except ValueError as error:
        raise TemplateUnavailable(f"template {name!r} cannot be read: {error}. Import it again") from None


def layers_message(opened: OpenTemplate, agent_pid: int) -> tuple[dict[str, Any], int | None]:
    """Return the layers' message for the agent, and an idmapped mount of their directory if possible.

    Without the mount, also if the files belong to its uid already, the agent opens the directory by its path.
    """
    trees = [f"{layer}/{LAYER_TREE}" for layer in reversed(opened.template.layers)]
    said = {"directory": str(opened.layers.absolute()), "trees": trees}
    if os.geteuid() != 0:
        return said, None
    try:
        return said, _idmapped_layers(opened.layers, agent_pid)
    except OSError:
        return said, None


def program_variables(
    opened: OpenTemplate | None, base_prefix: str, workspace: str, *, user: str | None, has_users: bool
) -> dict[str, str]:
    """Return the variables of a program. Those of the action take precedence.

    The agent adds the home directory of a user that has an entry of its own.
    """
    if opened is None:
        found = host_variables(base_prefix, workspace)
        return found if user is None else {name: found[name] for name in found if name != "HOME"}
    found = {**_VARIABLES, "HOME": template_home(opened, workspace), **opened.template.env}
    if has_users and "HOME" not in opened.template.env:
        del found["HOME"]
    return found


def template_home(opened: OpenTemplate | None, workspace: str) -> str:
    """Return the home directory of a user without an entry in `/etc/passwd`."""
    return (opened.template.home if opened is not None else None) or workspace


def choose_user(wanted: str | None, opened: OpenTemplate | None, *, has_users: bool) -> str | None:
    """Return the user of an action, or None if the environment has one user. Raises ValueError."""
    if not has_users and wanted is not None:
        raise ValueError(
            f"user {wanted!r} is not available: environments of this node have one user, as `users` of `tangram doctor`"
            " explains; leave out `user`"
        )
    if not has_users or wanted is not None:
        return wanted
    if opened is None or not opened.template.has_owners:
        return HOST_USER
    return opened.template.user or ROOT


def has_program(opened: OpenTemplate, name: str) -> bool:
    """Return True if a layer of the template has a program of this name in a directory of its PATH.

    Actions cannot change layers, so the answer does not depend on what has run in the environment.
    """
    path = opened.template.env.get("PATH", _VARIABLES["PATH"])
    places = {each.strip("/") for each in path.split(":") if each.startswith("/")}
    trees = [opened.layers / layer / LAYER_TREE for layer in opened.template.layers]
    return any(os.path.lexists(tree / place / name) for tree in trees for place in places)


def _idmapped_layers(directory: Path, agent_pid: int) -> int:
    namespace = os.open(f"/proc/{agent_pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syscalls.create_idmapped_mount(str(directory), namespace)
    finally:
        os.close(namespace)
