"""The templates of one node: `names/NAME.json` and `layers/sha256-…/tree`, in a directory that only its owner may open.

The record of a pulled image is `names/@DIGEST.json`, with the sha256 of its reference: a reference has slashes.

A process that uses a template has a shared lock on its name and its layers. Locked templates and layers are not
removed.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from arl_core.images.references import is_image_name
from arl_cpu.launcher.linux.id_ranges import can_map_ranges
from arl_cpu.templates.template import Template

__all__ = [
    "LAYER_TREE",
    "OpenTemplate",
    "TemplateInUse",
    "TemplateStore",
    "UnknownTemplate",
    "keeps_owners",
    "layer_owner",
    "shared_lock",
]

LAYER_TREE = "tree"
_LAYER_UID = 1000
_TRIES = 3


def layer_owner() -> int | None:
    """Return the owner of layer files. None means the user that unpacks them.

    Root uses the owners of the archive, or one fixed uid if environments have one user. An idmapped mount translates
    them to the ids of the environment.
    """
    return _LAYER_UID if os.geteuid() == 0 else None


def keeps_owners() -> bool:
    """Return True if new layers keep the owners of the archive, because environments of this machine have users."""
    return can_map_ranges()


class UnknownTemplate(Exception):
    """A template name that does not exist on this node."""


class TemplateInUse(Exception):
    """A template or layer that a living environment uses."""


class OpenTemplate:
    """A template in use. Its layers stay until it is closed."""

    def __init__(self, template: Template, layers: Path, locks: ExitStack) -> None:
        self.template, self.layers, self._locks = template, layers, locks

    def close(self) -> None:
        """Release the locks, so that the template can be removed."""
        self._locks.close()


class TemplateStore:
    """The template store of a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records_dir, self.layers_dir = directory / "names", directory / "layers"

    def create_directories(self) -> None:
        """Create the store. The uids of environments may traverse its layers once these are mounted there."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.directory.stat().st_uid != os.geteuid():
            raise PermissionError(
                errno.EPERM, "the template directory must belong to the user that runs the node", str(self.directory)
            )
        self.directory.chmod(0o700)
        for path in (self.records_dir, self.layers_dir):
            path.mkdir(mode=0o755, exist_ok=True)

    @property
    def modified_ns(self) -> int:
        """Time stamp that changes whenever a template is added, removed or changed."""
        try:
            return self.records_dir.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def list_templates(self) -> tuple[Template, ...]:
        """Return the readable templates. Raises OSError if the store itself is unreadable."""
        return tuple(template for path in self._record_paths() if isinstance(template := _read_record(path), Template))

    def damaged_records(self) -> Mapping[str, str]:
        """Return the reason for each unreadable record, by template name. Another version may have written it."""
        found = {path.stem: _read_record(path) for path in self._record_paths()}
        return {name: str(error) for name, error in found.items() if isinstance(error, Exception)}

    def list_images(self) -> tuple[tuple[Template, float], ...]:
        """Return the pulled images, each with the time of its last use in seconds since 1970, longest unused first."""
        found = [(each, self._used_at(each.name)) for each in self.list_templates() if is_image_name(each.name)]
        return tuple(sorted(found, key=lambda each: (each[1], each[0].name)))

    def open(self, name: str) -> OpenTemplate:
        """Open a template. Raises UnknownTemplate, or ValueError for a record of another version."""
        for _ in range(_TRIES):
            with ExitStack() as held:
                try:
                    template = self._lock_template(name, held)
                except (FileNotFoundError, BlockingIOError):
                    continue  # it is being replaced or removed
                return OpenTemplate(template, self.layers_dir, held.pop_all())
        raise UnknownTemplate(name)

    @contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Serialise imports and removals; a second one waits."""
        self.create_directories()
        with _open_file(self.directory / "lock", os.O_CREAT | os.O_RDWR) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def lock_unused(self, path: Path) -> Iterator[None]:
        """Lock a path exclusively, so that no environment can start to use it. Raises TemplateInUse."""
        with _open_file(path, os.O_RDONLY) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TemplateInUse(path.name) from None
            yield

    def record_path(self, name: str) -> Path:
        """Return the path of a template's record."""
        return self.records_dir / f"{_record_stem(name)}.json"

    def lock_path(self, name: str) -> Path:
        """Return the lock file of a template name, and set its time to now, the time of the last use.

        Each environment from the template, also from an earlier version, locks the file.
        """
        path = self.lock_file(name)
        path.touch(0o600)
        return path

    def lock_file(self, name: str) -> Path:
        """Return the path of a template's lock file, which may not exist."""
        return self.records_dir / f"{_record_stem(name)}.lock"

    def _used_at(self, name: str) -> float:
        for path in (self.lock_file(name), self.record_path(name)):
            with suppress(FileNotFoundError):
                return path.stat().st_mtime
        return 0.0

    def _record_paths(self) -> Sequence[Path]:
        return sorted(self.records_dir.glob("*.json"))

    def _lock_template(self, name: str, locks: ExitStack) -> Template:
        record = locks.enter_context(shared_lock(self.record_path(name)))
        locks.enter_context(shared_lock(self.lock_path(name)))
        template = Template.loads(os.pread(record, os.fstat(record).st_size, 0).decode())
        for layer in template.layers:
            locks.enter_context(shared_lock(self.layers_dir / layer))
        return template


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Lock a file or directory against removal.

    Raises FileNotFoundError if it was removed or replaced, and BlockingIOError while it is being removed.
    """
    with _open_file(path, os.O_RDONLY) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file), path.stat()):
            raise FileNotFoundError(path)  # the locked file was replaced or removed
        yield file


@contextmanager
def _open_file(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _record_stem(name: str) -> str:
    return f"@{sha256(name.encode()).hexdigest()}" if is_image_name(name) else name


def _read_record(path: Path) -> Template | OSError | ValueError | None:
    try:
        return Template.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return error
