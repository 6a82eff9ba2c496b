"""Import and removal of templates."""

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

from arl_cpu.launcher.files import workdir
from arl_cpu.launcher.linux import syscalls
from arl_cpu.templates.byte_streams import DigestingReader, ImportBudget, ReadableStream, decompress, drain
from arl_cpu.templates.image_sources import ImageBlobs, identify_source, open_source, pack_directory, read_image
from arl_cpu.templates.layer_unpacker import OPAQUE, read_archive
from arl_cpu.templates.oci_image import ImageLayer, OciImage
from arl_cpu.templates.template import Template, TemplateError, check_name
from arl_cpu.templates.template_store import LAYER_TREE, TemplateInUse, TemplateStore, UnknownTemplate
from arl_store.files import replace_file

__all__ = ["import_template", "remove_template"]

_PARTIAL = ".partial-"
_LAYER_RECORD = "about.json"
_ROOT_HOME = "root"
_BLOCK = 1 << 20
_DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class _StoredLayer:
    """A layer in the store."""

    name: str
    bytes: int
    left_out: int


def import_template(store: TemplateStore, path: Path, name: str, *, budget: ImportBudget) -> Template:
    """Import a template completely or not at all. Layers in the store are not unpacked again. Raises TemplateError.

    An environment from an earlier template of this name keeps its files.
    """
    check_name(name)
    kind = identify_source(path)
    with store.exclusive_lock():
        _remove_unused_layers(store)
        if kind == "directory":
            image = OciImage(())
            layers = [_store_directory(store, path, budget)]
            digest = layers[0].name.replace("-", ":")
        else:
            with _archive_errors(path), open_source(path) as blobs:
                image, digest = read_image(blobs)
                layers = [_store_layer(store, blobs, layer, budget) for layer in image.layers]
        layers = _visible_layers(store, layers)
        # One directory cannot be two layers of an overlay. The highest occurrence counts.
        layers = list({layer.name: layer for layer in reversed(layers)}.values())[::-1]
        _sync_layers(store.layers_dir)
        template = Template(
            name=name,
            digest=digest,
            source=str(path),
            layers=tuple(layer.name for layer in layers),
            bytes=sum(layer.bytes for layer in layers),
            env=image.env,
            workdir=image.workdir,
            home=_home_directory(store, layers),
            left_out=sum(layer.left_out for layer in layers),
        )
        replace_file(store.record_path(name), template.dumps())
        _remove_unused_layers(store)
    return template


def remove_template(store: TemplateStore, name: str) -> None:
    """Remove a template and its exclusive layers.

    Raises UnknownTemplate, or TemplateInUse while an environment uses it.
    """
    check_name(name)
    with store.exclusive_lock():
        _remove_unused_layers(store)
        path = store.record_path(name)
        if not path.exists():
            raise UnknownTemplate(name)
        lock = store.lock_path(name)
        with store.lock_unused(path), store.lock_unused(lock):
            path.unlink()
            lock.unlink()
        _remove_unused_layers(store)


def _store_directory(store: TemplateStore, path: Path, budget: ImportBudget) -> _StoredLayer:
    """Store a directory as a layer. The archive passes through a pipe, so that only the layer is written to disk."""
    readable, writable = os.pipe()
    with ThreadPoolExecutor(1) as packer, open(readable, "rb") as packed:
        packing = packer.submit(_pack, path, writable)
        try:
            with _archive_errors(path):
                layer = _unpack(store, packed, None, budget)
        except TemplateError:
            packed.close()
            if (error := packing.exception()) is not None and not isinstance(error, BrokenPipeError):
                raise error from None  # the reason why the archive ended early
            raise
    packing.result()
    return layer


def _pack(path: Path, writable: int) -> None:
    with open(writable, "wb") as target:
        pack_directory(path, target)


def _store_layer(store: TemplateStore, blobs: ImageBlobs, layer: ImageLayer, budget: ImportBudget) -> _StoredLayer:
    if (there := _find_stored_layer(store, layer.diff_id)) is not None:
        return there
    with blobs.open(layer.blob) as file, _archive_errors(Path(layer.blob)):
        digesting = DigestingReader(file)
        packed = io.BufferedReader(digesting, _BLOCK)

        def check() -> None:
            """Read the rest and compare the digest. Raises `TemplateError`."""
            drain(packed)
            if layer.digest is not None and digesting.digest != layer.digest:
                raise TemplateError(f"{layer.blob} is damaged: its digest is {digesting.digest}")

        return _unpack(store, decompress(packed), layer.diff_id, budget, check)


def _unpack(
    store: TemplateStore,
    stream: ReadableStream,
    diff_id: str | None,
    budget: ImportBudget,
    check: Callable[[], None] = lambda: None,
) -> _StoredLayer:
    """Unpack a layer under a temporary name and rename it once it is complete and verified."""
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=store.layers_dir))
    try:
        (partial / LAYER_TREE).mkdir(mode=0o755)
        digesting = DigestingReader(stream, budget)
        unpacked = io.BufferedReader(digesting, _BLOCK)
        left_out = read_archive(unpacked, partial / LAYER_TREE, budget)
        drain(unpacked)
        check()
        if diff_id not in (None, digesting.digest):
            raise TemplateError(f"the layer is damaged: its digest is {digesting.digest}, not {diff_id}")
        layer = _StoredLayer(_layer_directory(digesting.digest), digesting.count, left_out)
        (partial / _LAYER_RECORD).write_text(json.dumps(asdict(layer)))
        partial.chmod(0o755)
        if not (store.layers_dir / layer.name).exists():
            partial.rename(store.layers_dir / layer.name)
    finally:
        if partial.exists():
            workdir.remove(partial)
    return layer


def _find_stored_layer(store: TemplateStore, diff_id: str) -> _StoredLayer | None:
    try:
        return _StoredLayer(**json.loads((store.layers_dir / _layer_directory(diff_id) / _LAYER_RECORD).read_text()))
    except FileNotFoundError:
        return None


def _layer_directory(digest: str) -> str:
    return digest.replace(":", "-")


def _sync_layers(directory: Path) -> None:
    """Flush the layers to disk, so that after a power failure no record refers to missing files."""
    opened_directory = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.sync_file_system(opened_directory)
    finally:
        os.close(opened_directory)


def _home_directory(store: TemplateStore, layers: list[_StoredLayer]) -> str | None:
    """Return the home directory of the image's root user, whose role the sandbox user takes, or None."""
    for layer in reversed(layers):
        with suppress(FileNotFoundError):
            found = os.lstat(store.layers_dir / layer.name / LAYER_TREE / _ROOT_HOME)
            return f"/{_ROOT_HOME}" if stat.S_ISDIR(found.st_mode) else None
    return None


def _visible_layers(store: TemplateStore, layers: list[_StoredLayer]) -> list[_StoredLayer]:
    """Return the layers from the highest opaque one on. overlayfs ignores the opaque mark of a layer's root."""
    for index in range(len(layers) - 1, 0, -1):
        with suppress(OSError):
            if os.getxattr(store.layers_dir / layers[index].name / LAYER_TREE, OPAQUE) == b"y":
                return layers[index:]
    return layers


def _remove_unused_layers(store: TemplateStore) -> None:
    """Remove remains of killed imports, and layers that no template or environment uses.

    While a record is unreadable, all layers stay: some may belong to it.
    """
    for path in store.layers_dir.glob(f"{_PARTIAL}*"):
        workdir.remove(path)
    if store.damaged_records():
        return
    needed = {layer for template in store.list_templates() for layer in template.layers}
    for path in sorted(store.layers_dir.iterdir()):
        if path.name not in needed:
            with suppress(TemplateInUse), store.lock_unused(path):
                workdir.remove(path.rename(path.with_name(f"{_PARTIAL}{path.name}")))


@contextmanager
def _archive_errors(source: Path) -> Iterator[None]:
    """Convert every error that an archive can cause to a TemplateError."""
    try:
        yield
    except TemplateError as error:
        raise TemplateError(f"{source}: {error}") from None
    except MemoryError:
        raise TemplateError(f"{source}: the headers of the archive do not fit in memory") from None
    except _DAMAGED as error:
        raise TemplateError(f"{source} is damaged: {error or type(error).__name__}") from None
