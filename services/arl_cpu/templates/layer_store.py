"""The layers of a template store: unpacked once each, verified, and shared between templates.

Several processes may store layers at the same time. Each has a shared lock on what it unpacks and on the layers that it
needs, and removals skip what is locked.
"""

import gzip
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import zstandard

from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.linux import syscalls
from arl_cpu.templates.byte_streams import DigestingReader, ImportBudget, ReadableStream, decompress, drain
from arl_cpu.templates.image_sources import ImageBlobs
from arl_cpu.templates.layer_unpacker import OPAQUE, read_archive
from arl_cpu.templates.oci_image import ImageLayer
from arl_cpu.templates.template import TemplateError
from arl_cpu.templates.template_store import LAYER_TREE, TemplateInUse, TemplateStore, keeps_owners, shared_lock

__all__ = [
    "StoredLayer",
    "archive_errors",
    "digest_of_layer",
    "find_stored_layer",
    "home_directory",
    "layer_directories",
    "read_layers",
    "remove_unused_layers",
    "store_layer",
    "sync_layers",
    "unpack_layer",
    "visible_layers",
]

_PARTIAL = ".partial-"
_WITH_OWNERS = ".owners"
_LAYER_RECORD = "about.json"
_ROOT_HOME = "root"
_BLOCK = 1 << 20
_DAMAGED = (
    *(tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError),
    *(ValueError, OverflowError, RecursionError),
)


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer in the store."""

    name: str
    bytes: int
    left_out: int
    packed_bytes: int = 0
    """Bytes of the compressed archive; 0 if the layer was made from a directory."""


def store_layer(
    store: TemplateStore, blobs: ImageBlobs, layer: ImageLayer, budget: ImportBudget, locks: ExitStack
) -> StoredLayer:
    """Unpack a layer unless the store has it. The layer stays in the store until `locks` is closed."""
    if (there := find_stored_layer(store, layer.diff_id, locks)) is not None:
        return there
    with blobs.open(layer.blob) as file, archive_errors(Path(layer.blob)):
        digesting = DigestingReader(file)
        packed = io.BufferedReader(digesting, _BLOCK)

        def check() -> int:
            """Read the rest, compare the digest and return the bytes of the archive. Raises `TemplateError`."""
            drain(packed)
            if layer.digest is not None and digesting.digest != layer.digest:
                raise TemplateError(f"{layer.blob} is damaged: its digest is {digesting.digest}")
            return digesting.count

        return unpack_layer(store, decompress(packed), layer.diff_id, budget, locks, check)


def unpack_layer(
    store: TemplateStore,
    stream: ReadableStream,
    diff_id: str | None,
    budget: ImportBudget,
    locks: ExitStack,
    check: Callable[[], int] = lambda: 0,
) -> StoredLayer:
    """Unpack a layer under a temporary name and rename it once it is complete and verified.

    `check` returns the bytes of the archive.
    """
    with ExitStack() as own:
        partial = _make_partial_directory(store, own)
        try:
            (partial / LAYER_TREE).mkdir(mode=0o755)
            digesting = DigestingReader(stream, budget)
            unpacked = io.BufferedReader(digesting, _BLOCK)
            left_out = read_archive(unpacked, partial / LAYER_TREE, budget)
            drain(unpacked)
            packed_bytes = check()
            if diff_id not in (None, digesting.digest):
                raise TemplateError(f"the layer is damaged: its digest is {digesting.digest}, not {diff_id}")
            layer = StoredLayer(_layer_directory(digesting.digest), digesting.count, left_out, packed_bytes)
            (partial / _LAYER_RECORD).write_text(json.dumps(asdict(layer)))
            partial.chmod(0o755)
            if (there := find_stored_layer(store, digesting.digest, locks)) is not None:
                return there
            partial.rename(store.layers_dir / layer.name)
            locks.enter_context(own.pop_all())
        finally:
            if partial.exists():
                workdir.remove(partial)
    return layer


def find_stored_layer(store: TemplateStore, diff_id: str, locks: ExitStack) -> StoredLayer | None:
    """Return a layer of the store, which stays there until `locks` is closed, or None."""
    path = store.layers_dir / _layer_directory(diff_id)
    try:
        locks.enter_context(shared_lock(path))
        return StoredLayer(**json.loads((path / _LAYER_RECORD).read_text()))
    except (FileNotFoundError, BlockingIOError):  # a locked layer is about to be removed
        return None


def read_layers(store: TemplateStore) -> dict[str, StoredLayer]:
    """Return all complete layers by the name of their directory."""
    found: dict[str, StoredLayer] = {}
    for path in store.layers_dir.glob("sha256-*"):
        with suppress(FileNotFoundError, NotADirectoryError):
            found[path.name] = StoredLayer(**json.loads((path / _LAYER_RECORD).read_text()))
    return found


def _make_partial_directory(store: TemplateStore, locks: ExitStack) -> Path:
    while True:
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=store.layers_dir))
        with suppress(FileNotFoundError, BlockingIOError):  # a removal was faster
            locks.enter_context(shared_lock(partial))
            return partial


def digest_of_layer(directory: str) -> str:
    """Return the digest of the uncompressed archive from the name of a layer's directory."""
    return directory.removesuffix(_WITH_OWNERS).replace("-", ":")


def layer_directories(digest: str) -> tuple[str, str]:
    """Return the directories that a layer has without and with the owners of its files."""
    name = digest.replace(":", "-")
    return name, f"{name}{_WITH_OWNERS}"


def _layer_directory(digest: str) -> str:
    """Return the directory. Earlier versions unpacked other layers, without owners, for one user."""
    return layer_directories(digest)[keeps_owners()]


def sync_layers(directory: Path) -> None:
    """Flush the layers to disk, so that after a power failure no record refers to missing files."""
    opened_directory = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.sync_file_system(opened_directory)
    finally:
        os.close(opened_directory)


def home_directory(store: TemplateStore, layers: list[StoredLayer]) -> str | None:
    """Return the home directory of the image's root user, or None. The only user of an environment takes its role."""
    for layer in reversed(layers):
        with suppress(FileNotFoundError):
            found = os.lstat(store.layers_dir / layer.name / LAYER_TREE / _ROOT_HOME)
            return f"/{_ROOT_HOME}" if stat.S_ISDIR(found.st_mode) else None
    return None


def visible_layers(store: TemplateStore, layers: list[StoredLayer]) -> list[StoredLayer]:
    """Return the layers from the highest opaque one on. overlayfs ignores the opaque mark of a layer's root."""
    for index in range(len(layers) - 1, 0, -1):
        with suppress(OSError):
            if os.getxattr(store.layers_dir / layers[index].name / LAYER_TREE, OPAQUE) == b"y":
                return layers[index:]
    return layers


def remove_unused_layers(store: TemplateStore) -> None:
    """Remove remains of killed imports, and layers that no template, environment or import uses.

    While a record is unreadable, all layers stay: some may belong to it.
    """
    for path in store.layers_dir.glob(f"{_PARTIAL}*"):
        with suppress(TemplateInUse, FileNotFoundError), store.lock_unused(path):
            workdir.remove(path)
    if store.damaged_records():
        return
    listed = sorted(store.layers_dir.iterdir())  # before the records: a pull writes its record after its layers
    needed = {layer for template in store.list_templates() for layer in template.layers}
    for path in listed:
        if path.name not in needed and not path.name.startswith(_PARTIAL):
            with suppress(TemplateInUse, FileNotFoundError), store.lock_unused(path):
                workdir.remove(path.rename(path.with_name(f"{_PARTIAL}{path.name}")))


@contextmanager
def archive_errors(source: Path) -> Iterator[None]:
    """Convert every error that an archive can cause to a TemplateError."""
    try:
        yield
    except TemplateError as error:
        raise TemplateError(f"{source}: {error}") from None
    except MemoryError:
        raise TemplateError(f"{source}: the headers of the archive do not fit in memory") from None
    except _DAMAGED as error:
        raise TemplateError(f"{source} is damaged: {error or type(error).__name__}") from None
