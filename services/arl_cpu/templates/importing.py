"""Templates come into a store, and leave it."""

import gzip
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from arl_cpu.launcher import syscalls, workdir
from arl_store.files import replace_file

from .image import Image, Layer
from .records import Template, check_name
from .refused import Refused
from .sources import Blobs, identify, image_of, opened, pack_directory
from .store import TREE, InUse, Store, UnknownTemplate
from .streams import Budget, Digesting, Readable, decompressed, drain
from .unpack import OPAQUE, read_archive

__all__ = ["import_template", "remove_template"]

_PARTIAL = ".partial-"
_ABOUT = "about.json"
_HOME = "root"
_BLOCK = 1 << 20
_DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One that lies in the store."""

    name: str
    bytes: int
    left_out: int


def import_template(store: Store, path: Path, name: str, *, budget: Budget) -> Template:
    """All of it or nothing; layers that are there already are not unpacked again. Raises Refused.

    An environment that was made from an earlier template of this name keeps its files.
    """
    check_name(name)
    kind = identify(path)
    with store.changing():
        _clear(store)
        if kind == "directory":
            image = Image(())
            layers = [_take_directory(store, path, budget)]
            digest = layers[0].name.replace("-", ":")
        else:
            with _told(path), opened(path) as blobs:
                image, digest = image_of(blobs)
                layers = [_take_layer(store, blobs, layer, budget) for layer in image.layers]
        layers = _visible(store, layers)
        # One directory cannot be two layers of an overlay; what lies highest hides the others.
        layers = list({layer.name: layer for layer in reversed(layers)}.values())[::-1]
        _persist(store.layers)
        template = Template(
            name=name,
            digest=digest,
            source=str(path),
            layers=tuple(layer.name for layer in layers),
            bytes=sum(layer.bytes for layer in layers),
            env=image.env,
            workdir=image.workdir,
            home=_home(store, layers),
            left_out=sum(layer.left_out for layer in layers),
        )
        replace_file(store.path_of(name), template.dumps())
        _clear(store)
    return template


def remove_template(store: Store, name: str) -> None:
    """With the layers that only it has. Raises UnknownTemplate, or InUse while an environment lives in it."""
    check_name(name)
    with store.changing():
        _clear(store)
        path = store.path_of(name)
        if not path.exists():
            raise UnknownTemplate(name)
        lock = store.lock_of(name)
        with store.unused(path), store.unused(lock):
            path.unlink()
            lock.unlink()
        _clear(store)


def _take_directory(store: Store, path: Path, budget: Budget) -> _Layer:
    """Through a pipe, so that nothing but the layer itself is written."""
    readable, writable = os.pipe()
    with ThreadPoolExecutor(1) as packer, open(readable, "rb") as packed:
        packing = packer.submit(_pack, path, writable)
        try:
            with _told(path):
                layer = _unpack(store, packed, None, budget)
        except Refused:
            packed.close()
            if (error := packing.exception()) is not None and not isinstance(error, BrokenPipeError):
                raise error from None  # it is why the archive ended early
            raise
    packing.result()
    return layer


def _pack(path: Path, writable: int) -> None:
    with open(writable, "wb") as target:
        pack_directory(path, target)


def _take_layer(store: Store, blobs: Blobs, layer: Layer, budget: Budget) -> _Layer:
    if (there := _there(store, layer.diff_id)) is not None:
        return there
    with blobs.open(layer.blob) as file, _told(Path(layer.blob)):
        digesting = Digesting(file)
        packed = io.BufferedReader(digesting, _BLOCK)

        def check() -> None:
            drain(packed)
            if layer.digest is not None and digesting.digest != layer.digest:
                raise Refused(f"{layer.blob} is damaged: its digest is {digesting.digest}")

        return _unpack(store, decompressed(packed), layer.diff_id, budget, check)


def _unpack(
    store: Store, stream: Readable, diff_id: str | None, budget: Budget, check: Callable[[], None] = lambda: None
) -> _Layer:
    """Beside the others under a name that nobody uses, until all of it is there and is what it should be."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=store.layers))
    try:
        (partial / TREE).mkdir(mode=0o755)
        digesting = Digesting(stream, budget)
        unpacked = io.BufferedReader(digesting, _BLOCK)
        left_out = read_archive(unpacked, partial / TREE, budget)
        drain(unpacked)
        check()
        if diff_id not in (None, digesting.digest):
            raise Refused(f"the layer is damaged: its digest is {digesting.digest}, not {diff_id}")
        layer = _Layer(_directory_of(digesting.digest), digesting.count, left_out)
        (partial / _ABOUT).write_text(json.dumps(asdict(layer)))
        partial.chmod(0o755)
        if not (store.layers / layer.name).exists():
            partial.rename(store.layers / layer.name)
    finally:
        if partial.exists():
            workdir.remove(partial)
    return layer


def _there(store: Store, diff_id: str) -> _Layer | None:
    try:
        return _Layer(**json.loads((store.layers / _directory_of(diff_id) / _ABOUT).read_text()))
    except FileNotFoundError:
        return None


def _directory_of(digest: str) -> str:
    return digest.replace(":", "-")


def _persist(directory: Path) -> None:
    """A name must not outlive a power failure that its files did not."""
    opened_directory = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.sync_file_system(opened_directory)
    finally:
        os.close(opened_directory)


def _home(store: Store, layers: list[_Layer]) -> str | None:
    """Where root of the image is at home, whose place the sandbox's user takes."""
    for layer in reversed(layers):
        with suppress(FileNotFoundError):
            found = os.lstat(store.layers / layer.name / TREE / _HOME)
            return f"/{_HOME}" if stat.S_ISDIR(found.st_mode) else None
    return None


def _visible(store: Store, layers: list[_Layer]) -> list[_Layer]:
    """From the highest on that hides all below it: overlayfs asks no root of a layer whether it does."""
    for index in range(len(layers) - 1, 0, -1):
        with suppress(OSError):
            if os.getxattr(store.layers / layers[index].name / TREE, OPAQUE) == b"y":
                return layers[index:]
    return layers


def _clear(store: Store) -> None:
    """What an import that was killed has left, and layers that no template has and no environment uses.

    All of them stay while there is a record that cannot be read: some may be its.
    """
    for path in store.layers.glob(f"{_PARTIAL}*"):
        workdir.remove(path)
    if store.damaged():
        return
    needed = {layer for template in store.list() for layer in template.layers}
    for path in sorted(store.layers.iterdir()):
        if path.name not in needed:
            with suppress(InUse), store.unused(path):
                workdir.remove(path.rename(path.with_name(f"{_PARTIAL}{path.name}")))


@contextmanager
def _told(what: Path) -> Iterator[None]:
    """What an archive may do to whoever reads it becomes a sentence."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{what}: {error}") from None
    except MemoryError:
        raise Refused(f"{what}: its headers do not fit in memory") from None
    except _DAMAGED as error:
        raise Refused(f"{what} is damaged: {error or type(error).__name__}") from None
