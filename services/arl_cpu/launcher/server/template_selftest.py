"""A self-test of templates: it creates an environment from a template and changes one of its files."""

import os
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec, ExecutionReport, ExecutorEvent, NodeCapability
from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.linux.id_ranges import IDS_PER_ENVIRONMENT
from arl_cpu.launcher.sandbox.sandbox import SandboxPool
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost
from arl_cpu.launcher.server.launcher_node import LauncherNode
from arl_cpu.templates.template import Template
from arl_cpu.templates.template_store import LAYER_TREE, TemplateStore, layer_owner

__all__ = ["CAPABILITY_NAME", "run_template_selftest", "users_capability"]

CAPABILITY_NAME, USERS = "templates", "users"
_NAME, _FILE, _WORKDIR = "probe", "written", "/place"
_LIMIT_S, _NOT_FOUND = 5.0, 127
_MECHANISM = "overlayfs, written to the environment's own tmpfs"
_FIX = "use a kernel with overlayfs in user namespaces (Linux 5.11) and user xattrs on tmpfs (Linux 6.6)"
_ADVICE = (
    "store the templates on a file system that supports idmapped mounts (ext4, xfs, btrfs), with Linux 5.19 or newer"
)


def run_template_selftest(host: SandboxHost, directory: Path) -> NodeCapability:
    """Test templates. `best_effort` means that environments can read a template's files but not change them."""
    if not host.driver.has_templates:
        reason = f"the {host.driver.name} driver supports only the template `host`"
        return NodeCapability(
            name=CAPABILITY_NAME, level="absent", mechanism="none", reason=reason, fix="use the namespaces driver"
        )
    # Test in the directory of the real templates, because not every file system supports the mount. The launcher's
    # directory is locked, so the name is unique.
    place = host.templates.directory if host.templates is not None else directory
    scratch = place / f"probe.{zlib.crc32(os.fsencode(directory)):08x}"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        workdir.remove(scratch)  # left by a launcher that was killed
        scratch.mkdir(mode=0o755)
        can_read, can_write = _try_template(host, scratch)
    except OSError as error:
        return _absent_capability(str(error))
    finally:
        with suppress(OSError):  # an unusable directory is already reported
            workdir.remove(scratch)
    if not can_read:
        return _absent_capability("no environment could be created from a template")
    if can_write:
        return NodeCapability(name=CAPABILITY_NAME, level="enforced", mechanism=_MECHANISM)
    reason = (
        "environments can read the files of a template but not change them, because its layers cannot be mounted with"
        " the environment's uid"
    )
    return NodeCapability(name=CAPABILITY_NAME, level="best_effort", mechanism=_MECHANISM, reason=reason, fix=_ADVICE)


def users_capability(host: SandboxHost) -> NodeCapability:
    """Return whether environments have root and other users. Mapping their ids was tried when the launcher started."""
    if host.id_ranges is not None:
        mechanism = f"{IDS_PER_ENVIRONMENT} ids in each user namespace"
        return NodeCapability(name=USERS, level="enforced", mechanism=mechanism)
    if not host.driver.has_zygote_namespaces:
        reason, fix = f"the {host.driver.name} driver runs all programs as one user", "use the namespaces driver"
    elif os.geteuid() != 0:
        reason, fix = "an ordinary user can map only its own id", "run the launcher as root"
    elif host.cgroup_tree is None:
        reason = "without a cgroup, each user inside could start as many processes as the environment may have"
        fix = "give the launcher a writable cgroup"
    else:
        reason = "this launcher cannot map the ids from 0x80000000 on into user namespaces, or cannot lock them in /run"
        fix = "run the launcher as root of the machine, or of a container that has all of its ids"
    return NodeCapability(name=USERS, level="absent", mechanism="one user in each environment", reason=reason, fix=fix)


def _absent_capability(reason: str) -> NodeCapability:
    return NodeCapability(name=CAPABILITY_NAME, level="absent", mechanism="none", reason=reason, fix=_FIX)


def _try_template(host: SandboxHost, scratch: Path) -> tuple[bool, bool]:
    """Return whether a template can be read and changed.

    The command does not exist; exit code 127 proves that set-up worked.
    """
    store = _create_store(scratch)
    reports: list[ExecutorEvent] = []
    trial = replace(host, templates=store)
    node = LauncherNode(trial, SandboxPool(trial, 0), reports.append)
    environment = EnvironmentSpec(id=uuid4(), scope="trajectory", template=_NAME, memory_mib=48, disk_mib=4, pids=4)

    def is_missed(files: dict[str, bytes]) -> bool:
        """Return True if the command of the action was not found."""
        reports.clear()
        node.start([_missing_command(environment, files)])
        host.loop.run_until(lambda: bool(reports), 2 * _LIMIT_S)
        return any(isinstance(event, ExecutionReport) and event.exit_code == _NOT_FOUND for event in reports)

    gone: list[bool] = []
    try:
        return is_missed({}), is_missed({_FILE: b"above"})
    finally:
        node.end_all(lambda: gone.append(True))
        host.loop.run_until(lambda: bool(gone), _LIMIT_S)


def _create_store(scratch: Path) -> TemplateStore:
    store = TemplateStore(scratch / "store")
    store.create_directories()
    root = store.layers_dir / _NAME / LAYER_TREE
    place = root / _WORKDIR.lstrip("/")
    place.mkdir(parents=True)
    (place / _FILE).write_text("below")
    if (owner := layer_owner()) is not None:
        for path in (root, place, place / _FILE):
            with suppress(OSError):  # same rule as for an unpacked image
                os.chown(path, owner, owner)
    template = Template(name=_NAME, digest="", source="", layers=(_NAME,), bytes=0, workdir=_WORKDIR)
    store.record_path(_NAME).write_text(template.dumps())
    return store


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
