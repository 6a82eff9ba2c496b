"""Whether environments of this node can begin with templates, found by making one and changing a file of it."""

import os
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from arl_core.fence import Fence
from arl_cpu.executor import Capability, EnvironmentSpec, Event, ExecSpec, Report
from arl_cpu.templates.image import Image
from arl_cpu.templates.importing import import_template
from arl_cpu.templates.refused import Refused
from arl_cpu.templates.store import Store
from arl_cpu.templates.streams import Budget

from . import workdir
from .cells import Host, Pool
from .node import Node

__all__ = ["TEMPLATES", "probe_templates"]

TEMPLATES = "templates"
_NAME, _FILE, _WORKDIR = "probe", "written", "/place"
_LIMIT_S, _NOT_FOUND = 5.0, 127
_MECHANISM = "overlayfs, written to the environment's own tmpfs"
_FIX = "overlayfs in user namespaces (Linux 5.11) with user xattrs on tmpfs (6.6)"
_ADVICE = "keep the templates on a file system that can be idmapped (ext4, xfs, btrfs); Linux 5.19"


def probe_templates(host: Host, directory: Path) -> Capability:
    """`best_effort`: an environment can be made, but what it begins with can only be read in it."""
    if not host.driver.has_templates:
        reason = f"the {host.driver.name} driver has none but `host`"
        return Capability(
            name=TEMPLATES, level="absent", mechanism="none", reason=reason, fix="use the namespaces driver"
        )
    scratch = directory / "templates-probe"
    workdir.remove(scratch)  # of one that was killed
    try:
        scratch.mkdir()
        can_read, can_write = _try(host, scratch)
    except (OSError, Refused) as error:
        return _absent(str(error))
    finally:
        workdir.remove(scratch)
    if not can_read:
        return _absent("no environment could be made from one")
    if can_write:
        return Capability(name=TEMPLATES, level="enforced", mechanism=_MECHANISM)
    reason = "files of a template can be read but not changed: its layers cannot be mounted as the environment's own"
    return Capability(name=TEMPLATES, level="best_effort", mechanism=_MECHANISM, reason=reason, fix=_ADVICE)


def _absent(reason: str) -> Capability:
    return Capability(name=TEMPLATES, level="absent", mechanism="none", reason=reason, fix=_FIX)


def _try(host: Host, scratch: Path) -> tuple[bool, bool]:
    """The command is not there: that it is missed tells that everything else was."""
    tree = scratch / "tree" / _WORKDIR.lstrip("/")
    tree.mkdir(parents=True)
    (tree / _FILE).write_text("below")
    store = Store(scratch / "store")
    budget = Budget(max_bytes=1 << 20, max_members=10)
    import_template(store, tree.parent, _NAME, budget=budget, image=Image((), workdir=_WORKDIR), durable=False)
    reports: list[Event] = []
    trial = replace(host, templates=store)
    node = Node(trial, Pool(trial, 0), reports.append)
    environment = EnvironmentSpec(id=uuid4(), scope="trajectory", template=_NAME, memory_mib=48, disk_mib=4, pids=4)

    def is_missed(files: dict[str, bytes]) -> bool:
        reports.clear()
        node.start([_missing_command(environment, files)])
        host.loop.run_until(lambda: bool(reports), 2 * _LIMIT_S)
        return any(isinstance(event, Report) and event.exit_code == _NOT_FOUND for event in reports)

    gone: list[bool] = []
    try:
        return is_missed({}), is_missed({_FILE: b"above"})
    finally:
        node.end_all(lambda: gone.append(True))
        host.loop.run_until(lambda: bool(gone), _LIMIT_S)


def _missing_command(environment: EnvironmentSpec, files: dict[str, bytes]) -> ExecSpec:
    return ExecSpec(
        fence=Fence(uuid4(), 1),
        environment=environment,
        argv=("/missing",),
        source=None,
        env={},
        cwd=None,
        stdin=b"",
        files=files,
        fetch=(),
        timeout_s=_LIMIT_S,
        cpu_milli=1000,
        cores=tuple(sorted(os.sched_getaffinity(0))[:1]),
    )
