"""`python -m arl_cpu.launcher`: read the settings from the environment, then run the event loop until SIGTERM.

With `--check [DRIVER]` it only tests what this host can enforce, prints the result as JSON and exits.
"""

import fcntl
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import arl_core
import arl_cpu
from arl_cpu.contract.executor import ExecutorEvent, NodeCapability
from arl_cpu.contract.verifier_packages import CAPABILITY_NAME, VARIABLE, find_packages
from arl_cpu.launcher.agent import native
from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.isolation.drivers import AUTO, DRIVERS, FALLBACKS, IsolationDriver
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.cgroups import find_cgroup_tree
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.linux.id_ranges import open_id_ranges
from arl_cpu.launcher.network.egress_process import EGRESS_SETTINGS
from arl_cpu.launcher.network.environment_network import network_capability
from arl_cpu.launcher.sandbox.sandbox import SandboxPool
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost
from arl_cpu.launcher.sandbox.zygote import start_zygote
from arl_cpu.launcher.server.launcher_node import LauncherNode
from arl_cpu.launcher.server.launcher_server import LauncherServer
from arl_cpu.launcher.server.selftest import DriverUnavailable, capabilities_without_isolation, run_selftest
from arl_cpu.launcher.server.template_selftest import run_template_selftest, users_capability
from arl_cpu.templates.template_store import TemplateStore

__all__ = ["main"]

SOURCE_ROOTS = tuple(dict.fromkeys(str(Path(str(package.__file__)).parents[1]) for package in (arl_core, arl_cpu)))
"""Directories from which this program's own modules are imported."""
_VERSION = "import sys; sys.exit(sys.version_info < (3, 11))"
_FALLBACK_REASON = "TANGRAM_INSTEAD_OF"
"""Variable that the program sets for its own restart: the unusable driver and the reason."""
_SETTINGS = (
    "TANGRAM_LAUNCHER_SOCKET",
    "TANGRAM_LAUNCHER_DIR",
    "TANGRAM_DRIVER",
    "TANGRAM_NODE_NAME",
    "TANGRAM_SANDBOX_POOL_SIZE",
    "TANGRAM_TEMPLATES_DIR",
    "TANGRAM_AGENT",
    _FALLBACK_REASON,
    *EGRESS_SETTINGS,
)
_DEFAULT_POOL_SIZE, _MAX_POOL_SIZE = 8, 1000
_PASSED_VARIABLES = frozenset(
    {*_SETTINGS, VARIABLE, "PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_CTYPE"}
)
_EXIT_ZYGOTE_LOST, _EXIT_BAD_SETTINGS, _EXIT_NO_DRIVER, _EXIT_IN_USE = 1, 2, 3, 4
_SHUTDOWN_TIMEOUT_S = 10.0
_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")

# These ids are above every range that distributions assign to users and containers, so no other file or process has
# them.
_FIRST_UNUSED_ID, _IDS_PER_LAUNCHER, _LAUNCHERS = 0x70000000, 0x10000, 0x1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """The settings of the launcher, from environment variables."""

    socket_path: Path
    directory: Path
    driver: str
    node_name: str
    pool_size: int = 0
    """Number of environments to create in advance."""
    templates_dir: Path | None = None
    """Directory of the template store. None: only `host` is available."""
    agent: str = native.AUTO
    """Implementation of an environment's pid 1: `auto`, `native` (C) or `python`."""
    fallback_reason: str = ""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> "LauncherSettings":
        """Read the settings. Raises ValueError with a message that names the variable to set."""
        for name in ("TANGRAM_LAUNCHER_SOCKET", "TANGRAM_LAUNCHER_DIR"):
            if not variables.get(name):
                raise ValueError(f"{name} must be set to an absolute path")
        driver = variables.get("TANGRAM_DRIVER") or AUTO
        if driver not in (AUTO, *DRIVERS):
            raise ValueError(f"TANGRAM_DRIVER is {driver!r}; it must be one of {', '.join((AUTO, *DRIVERS))}")
        agent = variables.get("TANGRAM_AGENT") or native.AUTO
        if agent not in native.AGENT_KINDS:
            raise ValueError(f"TANGRAM_AGENT is {agent!r}; it must be one of {', '.join(native.AGENT_KINDS)}")
        node_name = variables.get("TANGRAM_NODE_NAME", "node")
        if "/" in node_name or node_name.startswith("."):
            raise ValueError("TANGRAM_NODE_NAME must be a name without '/'")
        for name, parse in EGRESS_SETTINGS.items():
            try:
                parse(variables.get(name, ""))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return cls(
            socket_path=Path(variables["TANGRAM_LAUNCHER_SOCKET"]),
            directory=Path(variables["TANGRAM_LAUNCHER_DIR"]).absolute(),
            driver=driver,
            node_name=node_name,
            pool_size=_int_variable(variables, "TANGRAM_SANDBOX_POOL_SIZE", _DEFAULT_POOL_SIZE),
            templates_dir=Path(variables["TANGRAM_TEMPLATES_DIR"]) if variables.get("TANGRAM_TEMPLATES_DIR") else None,
            agent=agent,
            fallback_reason=variables.get(_FALLBACK_REASON, ""),
        )


def main() -> int:
    """Run the launcher, or the check of `--check`. Return the exit code."""
    if VARIABLE not in os.environ and (packages := find_packages()) is not None:
        os.environ[VARIABLE] = packages
    _restart_with_clean_variables()
    os.umask(0o022)
    try:
        if sys.argv[1:2] == ["--check"]:
            return _check(*sys.argv[2:])
        settings = LauncherSettings.from_environment(os.environ)
        return 0 if sys.argv[1:2] == ["--check-settings"] else _run_exclusively(settings)
    except ValueError as error:
        return _exit_with_error(str(error), _EXIT_BAD_SETTINGS)


def _int_variable(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name, str(default))
    if not value.isdecimal() or int(value) > _MAX_POOL_SIZE:
        raise ValueError(f"{name} is {value!r}; it must be a number from 0 to {_MAX_POOL_SIZE}")
    return int(value)


def _check(driver: str = AUTO, directory: str | None = None) -> int:
    """Test the driver and print its capabilities.

    If it does not work, return 3 and write the reason to standard error.
    """
    directory = directory or tempfile.mkdtemp(prefix="tangram-check-")
    try:
        variables = {
            **os.environ,
            "TANGRAM_LAUNCHER_SOCKET": f"{directory}/socket",
            "TANGRAM_LAUNCHER_DIR": directory,
            "TANGRAM_DRIVER": driver,
            "TANGRAM_NODE_NAME": f"check-{os.getpid()}",
        }
        return _run(LauncherSettings.from_environment(variables), check_only=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_exclusively(settings: LauncherSettings) -> int:
    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(settings.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _exit_with_error(f"another launcher already uses {settings.directory}", _EXIT_IN_USE)
    return _run(settings)


def _run(settings: LauncherSettings, *, check_only: bool = False) -> int:
    names = FALLBACKS if settings.driver == AUTO else (settings.driver,)
    problems = [settings.fallback_reason] if settings.fallback_reason else []
    for name in names:
        driver = DRIVERS[name]
        try:
            if (problem := driver.problem()) is not None:
                raise DriverUnavailable(problem)
            if driver.needs_reachable_python:
                _use_reachable_python(settings, name, "; ".join(problems))
            return _run_driver(settings, driver, "; ".join(problems), check_only=check_only)
        except DriverUnavailable as problem:
            problems.append(f"the {name} driver does not work on this host: {problem}. {driver.fix}")
    problems.append("To run trusted code without isolation, set TANGRAM_DRIVER=unsafe-local")
    return _exit_with_error("; ".join(problems), _EXIT_NO_DRIVER)


def _run_driver(settings: LauncherSettings, driver: IsolationDriver, fallback_reason: str, *, check_only: bool) -> int:
    # The directory is locked and the node's name is not. A prefix with both is unique to this launcher.
    suffix = zlib.crc32(os.fsencode(settings.directory))
    first_host_id = _first_host_id(suffix)
    work_dir = workdir.root_path(
        settings.directory, suffix, own_uids=driver.needs_reachable_python and first_host_id is not None
    )
    try:
        workdir.create_root(work_dir)
    except OSError as problem:
        raise DriverUnavailable(f"the directory for the files of environments is unusable: {problem}") from problem
    tree = find_cgroup_tree(f"{settings.node_name}.{suffix:08x}") if driver.is_isolated else None
    if tree is not None:
        tree.sweep()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    loop = EventLoop()
    program, agent = _open_agent(settings.agent, driver, has_cgroup=tree is not None)
    host = SandboxHost(
        loop=loop,
        zygote=start_zygote(driver, program),
        cgroup_tree=tree,
        driver=driver,
        first_host_id=first_host_id,
        # Without a cgroup, a limit of processes counts for each user, and root inside is all users.
        id_ranges=open_id_ranges() if driver.has_zygote_namespaces and tree is not None else None,
        work_dir=work_dir,
        base_prefix=os.path.realpath(sys.base_prefix),
        agent_kind=settings.agent if program is not None else native.PYTHON,
        templates=TemplateStore(settings.templates_dir) if settings.templates_dir is not None else None,
    )
    _raise_open_files()  # after the fork: an agent closes every descriptor below its limit
    try:
        return _serve(settings, host, agent, fallback_reason, check_only=check_only)
    finally:
        host.egress.stop()
        host.zygote.channel.close()
        if tree is not None:
            tree.remove()
        workdir.remove(work_dir)
        settings.socket_path.unlink(missing_ok=True)
        host.ready_file.unlink(missing_ok=True)


def _open_agent(agent_kind: str, driver: IsolationDriver, *, has_cgroup: bool) -> tuple[int | None, NodeCapability]:
    """Return the C agent's program, or None for Python, and the capability to report. Raises DriverUnavailable."""
    in_python = partial(NodeCapability, name="agent", level="best_effort", mechanism="Python")
    if agent_kind == native.PYTHON:
        return None, in_python(reason="TANGRAM_AGENT is python")
    try:
        if not driver.has_zygote_namespaces or not has_cgroup:
            raise native.NativeAgentUnavailable("the C agent needs namespaces and a cgroup; one of them is missing")
        program = native.open_native_agent()
    except native.NativeAgentUnavailable as problem:
        if agent_kind != native.AUTO:
            raise DriverUnavailable(f"the C agent is not available: {problem}") from problem
        return None, in_python(reason=str(problem))
    return program, NodeCapability(name="agent", level="enforced", mechanism="C")


def _serve(
    settings: LauncherSettings, host: SandboxHost, agent: NodeCapability, fallback_reason: str, *, check_only: bool
) -> int:
    loop, driver = host.loop, host.driver
    pool = SandboxPool(host, settings.pool_size if driver.has_zygote_namespaces else 0)
    node = LauncherNode(host, pool, _ignore_event)
    loop.install_signals(lambda pid, status: _on_child(host, pid, status), lambda: _shut_down(loop, node))
    zygote = host.zygote
    loop.watch(zygote.channel.socket.fileno(), lambda: _on_zygote_readable(host, node))
    if driver.is_isolated and _would_run_as_root(host.first_host_id):
        raise DriverUnavailable("sandboxes never run as root, and no other uid is available for them")
    try:
        capabilities = (
            run_selftest(host, settings.directory) if driver.is_isolated else capabilities_without_isolation()
        )
        capabilities = (*capabilities, run_template_selftest(host, settings.directory), users_capability(host), agent)
        capabilities = (*capabilities, network_capability(host))
    except OSError as problem:
        raise DriverUnavailable(str(problem)) from problem
    if fallback_reason:
        fallback = NodeCapability(name="driver", level="best_effort", mechanism=driver.name, reason=fallback_reason)
        capabilities = (fallback, *capabilities)
    if check_only:
        sys.stdout.write(json.dumps([asdict(capability) for capability in capabilities]) + "\n")
        return 0
    if fallback_reason:
        sys.stderr.write(f"arl_cpu.launcher: falling back to the {driver.name} driver: {fallback_reason}\n")
    levels = {each.name: each.level for each in capabilities if each.name != CAPABILITY_NAME}
    host.enforcement = {**levels, "driver": driver.name}
    LauncherServer(loop, node, capabilities, driver.name).listen(settings.socket_path)
    pool.fill()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.run()
    return _EXIT_ZYGOTE_LOST if zygote.is_lost else 0


def _use_reachable_python(settings: LauncherSettings, driver: str, fallback_reason: str) -> None:
    """Restart with a system interpreter if other uids cannot reach this one. Only root needs it."""
    if os.geteuid() != 0 or is_reachable(os.path.realpath(sys.base_prefix)):
        return
    python = next((each for each in _SYSTEM_PYTHONS if is_suitable(each)), None)
    if python is None:
        raise DriverUnavailable(
            f"other uids cannot reach this Python in {sys.base_prefix}, and none of {', '.join(_SYSTEM_PYTHONS)} has"
            " version 3.11 or newer"
        )
    variables = {
        **os.environ,
        "TANGRAM_DRIVER": driver,
        _FALLBACK_REASON: fallback_reason,
        "PYTHONPATH": os.pathsep.join(SOURCE_ROOTS),
    }
    arguments = ["--check", driver, str(settings.directory)] if sys.argv[1:2] == ["--check"] else []
    os.execve(python, [python, "-m", "arl_cpu.launcher", *arguments], variables)  # noqa: S606


def _on_child(host: SandboxHost, pid: int, status: int) -> None:
    if (ended := host.workers.pop(pid, None)) is not None:
        ended(status)
    elif (cell := host.sandboxes.pop(pid, None)) is not None:
        cell.reaped()


def _on_zygote_readable(host: SandboxHost, node: LauncherNode) -> None:
    """Handle a response of the zygote.

    If it has ended, exit and be restarted: no environment can be created without it.
    """
    if host.zygote.handle_response():
        return
    host.loop.unwatch(host.zygote.channel.socket.fileno())
    sys.stderr.write("arl_cpu.launcher: the process that creates environments has ended; the launcher exits\n")
    _shut_down(host.loop, node)


def _shut_down(loop: EventLoop, node: LauncherNode) -> None:
    loop.call_later(_SHUTDOWN_TIMEOUT_S, loop.stop)
    node.end_all(loop.stop)


def _ignore_event(event: ExecutorEvent) -> None:
    del event


def _restart_with_clean_variables() -> None:
    """Restart this program without the other environment variables.

    The first environment block stays visible in /proc/self/environ of every fork of the launcher, and an action may run
    in a fork.
    """
    if set(os.environ) <= _PASSED_VARIABLES:
        return
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_VARIABLES}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**kept, "LANG": "C.UTF-8"})  # noqa: S606


def _first_host_id(suffix: int) -> int | None:
    if os.geteuid() != 0:
        return None
    wanted = _FIRST_UNUSED_ID + suffix % _LAUNCHERS * _IDS_PER_LAUNCHER
    with open("/proc/self/uid_map") as file:
        extents = [(int(line.split()[0]), int(line.split()[2])) for line in file]
    if any(first <= wanted and wanted + _IDS_PER_LAUNCHER <= first + count for first, count in extents):
        return wanted
    # Root of a container with few ids: use the upper half of its last range.
    first, count = extents[-1]
    return first + count // 2 if count > 2 else None


def _would_run_as_root(first_host_id: int | None) -> bool:
    """Return True for host root without other ids. Root of an unprivileged user namespace is that user on the host."""
    with open("/proc/self/uid_map") as file:
        inside, outside, _ = map(int, file.readline().split())
    return first_host_id is None and os.geteuid() == inside and outside == 0


def _raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _exit_with_error(message: str, code: int) -> int:
    sys.stderr.write(f"arl_cpu.launcher: {message}\n")
    return code


def is_reachable(path: str) -> bool:
    """Return True if every directory of the path is searchable by all users."""
    return all(stat.S_IMODE(each.stat().st_mode) & 0o001 for each in (Path(path), *Path(path).parents))


def is_suitable(python: str) -> bool:
    """Return True if other users can run this interpreter and it is recent enough."""
    if not os.access(python, os.X_OK) or not is_reachable(os.path.realpath(python)):
        return False
    return subprocess.run([python, "-I", "-S", "-c", _VERSION], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
