"""The templates of one node: `names/NAME.json` and `layers/sha256-…/tree`, in a directory of their owner's alone.

Whoever uses a template holds a shared lock on its name and on its layers; nothing that is locked is removed.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .records import Template

__all__ = ["TREE", "InUse", "Opened", "Store", "UnknownTemplate", "owner_here"]

TREE = "tree"
_OWNER = 1000
_TRIES = 3


def owner_here() -> int | None:
    """Of the files of layers: for root the one uid inside, which an idmapped mount makes an environment's; else None.

    None is whoever unpacks them.
    """
    return _OWNER if os.geteuid() == 0 else None


class UnknownTemplate(Exception):
    """There is no such template here."""


class InUse(Exception):
    """An environment lives that was made from it."""


class Opened:
    """A template in use: until it is closed its layers stay."""

    def __init__(self, template: Template, layers: Path, held: ExitStack) -> None:
        self.template, self.layers, self._held = template, layers, held

    def close(self) -> None:
        self._held.close()


class Store:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names, self.layers = directory / "names", directory / "layers"

    def make(self) -> None:
        """Layers can be passed through by the uids of environments, once something shows them there."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.directory.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "templates belong to whoever runs the node", str(self.directory))
        self.directory.chmod(0o700)
        for path in (self.names, self.layers):
            path.mkdir(mode=0o755, exist_ok=True)

    @property
    def stamp(self) -> int:
        """Another one whenever a template has come, gone or changed."""
        try:
            return self.names.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def list(self) -> tuple[Template, ...]:
        """Those that can be read. Raises OSError where the store itself can't be."""
        return tuple(template for path in self._records() if isinstance(template := _read(path), Template))

    def damaged(self) -> Mapping[str, str]:
        """Why, by the name of each template whose record cannot be read: another version may have written it."""
        found = {path.stem: _read(path) for path in self._records()}
        return {name: str(error) for name, error in found.items() if isinstance(error, Exception)}

    def open(self, name: str) -> Opened:
        """Raises UnknownTemplate, or ValueError for a record that another version has written."""
        for _ in range(_TRIES):
            with ExitStack() as held:
                try:
                    template = self._hold(name, held)
                except (FileNotFoundError, BlockingIOError):
                    continue  # it is being replaced, or removed
                return Opened(template, self.layers, held.pop_all())
        raise UnknownTemplate(name)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One import or removal at a time; others wait."""
        self.make()
        with _opened(self.directory / "lock", os.O_CREAT | os.O_RDWR) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def unused(self, path: Path) -> Iterator[None]:
        """Nobody begins to use it meanwhile. Raises InUse."""
        with _opened(path, os.O_RDONLY) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(path.name) from None
            yield

    def path_of(self, name: str) -> Path:
        return self.names / f"{name}.json"

    def lock_of(self, name: str) -> Path:
        """Held by each environment that began with a template of that name, an earlier one too."""
        path = self.names / f"{name}.lock"
        path.touch(0o600)
        return path

    def _records(self) -> Sequence[Path]:
        return sorted(self.names.glob("*.json"))

    def _hold(self, name: str, held: ExitStack) -> Template:
        record = held.enter_context(_shared(self.path_of(name)))
        held.enter_context(_shared(self.lock_of(name)))
        template = Template.loads(os.pread(record, os.fstat(record).st_size, 0).decode())
        for layer in template.layers:
            held.enter_context(_shared(self.layers / layer))
        return template


@contextmanager
def _shared(path: Path) -> Iterator[int]:
    with _opened(path, os.O_RDONLY) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file), path.stat()):
            raise FileNotFoundError(path)  # what was locked is not there any more
        yield file


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _read(path: Path) -> Template | OSError | ValueError | None:
    try:
        return Template.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return error
