"""`python -m arl_cpu.launcher`: settings from the environment, then the loop until SIGTERM.

With `--check` it only tries what this host can enforce, prints that as JSON and ends.
"""

import fcntl
import json
import os
import resource
import shutil
import sys
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from arl_cpu.executor import Event

from . import syscalls
from .cells import Host, Pool
from .cgroups import find_tree
from .loop import Loop
from .node import Node
from .selftest import NotPossible, probe, without_walls
from .server import Server
from .zygote import start_zygote

__all__ = ["main"]

_DRIVERS = ("namespaces", "unsafe-local")
_SETTINGS = (
    "TANGRAM_LAUNCHER_SOCKET",
    "TANGRAM_LAUNCHER_DIR",
    "TANGRAM_DRIVER",
    "TANGRAM_NODE_NAME",
    "TANGRAM_READY_ENVIRONMENTS",
)
_READY, _MOST_READY = 8, 1000
_KEPT = frozenset({*_SETTINGS, "PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_CTYPE"})
_LOST_ZYGOTE, _WRONG_SETTINGS, _NO_DRIVER, _IN_USE = 1, 2, 3, 4
_END_LIMIT_S = 10.0

# Above every range that distributions hand to users and containers, so that no file and no process has such a uid.
_FIRST_UNUSED_ID, _IDS_PER_LAUNCHER, _LAUNCHERS = 0x70000000, 0x10000, 0x1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    socket_path: Path
    directory: Path
    driver: str
    node_name: str
    ready: int = 0
    """How many environments are made before anybody asks for them."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> "Settings":
        """Raises ValueError with a sentence that says what to set."""
        for name in ("TANGRAM_LAUNCHER_SOCKET", "TANGRAM_LAUNCHER_DIR"):
            if not variables.get(name):
                raise ValueError(f"{name} must be set to an absolute path")
        driver = variables.get("TANGRAM_DRIVER", "namespaces")
        if driver not in _DRIVERS:
            raise ValueError(f"TANGRAM_DRIVER is {driver!r}; it must be one of {', '.join(_DRIVERS)}")
        node_name = variables.get("TANGRAM_NODE_NAME", "node")
        if "/" in node_name or node_name.startswith("."):
            raise ValueError("TANGRAM_NODE_NAME must be a plain name without '/'")
        return cls(
            socket_path=Path(variables["TANGRAM_LAUNCHER_SOCKET"]),
            directory=Path(variables["TANGRAM_LAUNCHER_DIR"]).absolute(),
            driver=driver,
            node_name=node_name,
            ready=_number(variables, "TANGRAM_READY_ENVIRONMENTS", _READY),
        )


def main() -> int:
    _start_with_clean_variables()
    os.umask(0o022)
    if sys.argv[1:] == ["--check"]:
        with tempfile.TemporaryDirectory(prefix="tangram-check-") as directory:
            return _check(Path(directory))
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        return _give_up(str(error), _WRONG_SETTINGS)
    return _run_alone(settings)


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name, str(default))
    if not value.isdecimal() or int(value) > _MOST_READY:
        raise ValueError(f"{name} is {value!r}; it must be a number from 0 to {_MOST_READY}")
    return int(value)


def _check(directory: Path) -> int:
    """Exit code 3, and the reason on standard error, where the namespaces driver does not work."""
    settings = Settings(
        socket_path=directory / "socket", directory=directory, driver="namespaces", node_name=f"check-{os.getpid()}"
    )
    return _run(settings, check_only=True)


def _run_alone(settings: Settings) -> int:
    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(settings.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _give_up(f"another launcher uses {settings.directory}", _IN_USE)
    return _run(settings)


def _run(settings: Settings, *, check_only: bool = False) -> int:
    work_dir = settings.directory / "work"
    shutil.rmtree(work_dir, ignore_errors=True)
    work_dir.mkdir(mode=0o700)
    in_namespaces = settings.driver == "namespaces"
    # The directory is locked, a node's name is not: with both in it the prefix is this launcher's alone.
    suffix = zlib.crc32(os.fsencode(settings.directory))
    tree = find_tree(f"{settings.node_name}.{suffix:08x}") if in_namespaces else None
    if tree is not None:
        tree.sweep()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    loop = Loop()
    host = Host(
        loop=loop,
        zygote=start_zygote(),
        tree=tree,
        in_namespaces=in_namespaces,
        first_host_id=_first_host_id(suffix),
        work_dir=work_dir,
        base_prefix=os.path.realpath(sys.base_prefix),
    )
    _raise_open_files()  # after the fork: an agent closes every number below its limit
    try:
        return _serve(settings, host, check_only=check_only)
    finally:
        host.zygote.channel.close()
        if tree is not None:
            tree.remove()
        shutil.rmtree(work_dir, ignore_errors=True)
        settings.socket_path.unlink(missing_ok=True)
        host.ready_listing.unlink(missing_ok=True)


def _serve(settings: Settings, host: Host, *, check_only: bool) -> int:
    loop = host.loop
    pool = Pool(host, settings.ready if host.in_namespaces else 0)
    node = Node(host, pool, _ignore)
    loop.install_signals(lambda pid, _status: _on_child(host, pid), lambda: _end(loop, node))
    zygote = host.zygote
    loop.watch(zygote.channel.socket.fileno(), lambda: _on_zygote(host, node))
    try:
        if host.in_namespaces and _would_run_as_root(host.first_host_id):
            raise NotPossible("sandboxes never run as root, and this root has no other uid to give them")
        capabilities = probe(host, settings.directory) if host.in_namespaces else without_walls()
    except NotPossible as problem:
        return _give_up(
            f"the namespaces driver does not work on this host: {problem}. Allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1 or kernel.apparmor_restrict_unprivileged_userns=0; in a "
            "container also an unmasked /proc), or set TANGRAM_DRIVER=unsafe-local to run code you trust without walls",
            _NO_DRIVER,
        )
    if check_only:
        sys.stdout.write(json.dumps([asdict(capability) for capability in capabilities]) + "\n")
        return 0
    host.enforcement = {capability.name: capability.level for capability in capabilities}
    Server(loop, node, capabilities, settings.driver).listen(settings.socket_path)
    pool.fill()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.run()
    return _LOST_ZYGOTE if zygote.is_gone else 0


def _on_child(host: Host, pid: int) -> None:
    cell = host.children.pop(pid, None)
    if cell is not None:
        cell.reaped()


def _on_zygote(host: Host, node: Node) -> None:
    """Without it no environment can be made: better to end, and be started anew, than to fail every action."""
    if host.zygote.answer():
        return
    host.loop.unwatch(host.zygote.channel.socket.fileno())
    sys.stderr.write("arl_cpu.launcher: the process that makes environments is gone; ending\n")
    _end(host.loop, node)


def _end(loop: Loop, node: Node) -> None:
    loop.after(_END_LIMIT_S, loop.stop)
    node.end_all(loop.stop)


def _ignore(event: Event) -> None:
    del event


def _start_with_clean_variables() -> None:
    """Start this program anew without what else the variables hold.

    Every fork of the launcher shows the first block of variables in /proc/self/environ, and an action may be one.
    """
    if set(os.environ) <= _KEPT:
        return
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**kept, "LANG": "C.UTF-8"})  # noqa: S606


def _first_host_id(suffix: int) -> int | None:
    if os.geteuid() != 0:
        return None
    wanted = _FIRST_UNUSED_ID + suffix % _LAUNCHERS * _IDS_PER_LAUNCHER
    with open("/proc/self/uid_map") as file:
        extents = [(int(line.split()[0]), int(line.split()[2])) for line in file]
    if any(first <= wanted and wanted + _IDS_PER_LAUNCHER <= first + count for first, count in extents):
        return wanted
    # Root of a container with few ids: the upper half of its last range.
    first, count = extents[-1]
    return first + count // 2 if count > 2 else None


def _would_run_as_root(first_host_id: int | None) -> bool:
    """Root with no other id to give away. Root of a user's own container is that user outside, and may."""
    with open("/proc/self/uid_map") as file:
        inside, outside, _ = map(int, file.readline().split())
    return first_host_id is None and os.geteuid() == inside and outside == 0


def _raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _give_up(sentence: str, code: int) -> int:
    sys.stderr.write(f"arl_cpu.launcher: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
