"""The pull of one image: manifest, missing layers in parallel, and the record of the image in the template store."""

import fcntl
import json
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from arl_core.images.pull_planning import ImageFailure
from arl_core.images.references import ImageReference
from arl_cpu.images.registry_client import PullFailed, RegistryClient
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import make_template
from arl_cpu.templates.layer_store import StoredLayer, find_stored_layer, store_layer
from arl_cpu.templates.oci_image import (
    ARCHITECTURES,
    ImageLayer,
    OciImage,
    blob_path,
    is_index,
    parse_oci_image,
    select_image,
)
from arl_cpu.templates.template import Template, TemplateError
from arl_cpu.templates.template_store import TemplateStore

__all__ = ["DOWNLOADS", "ImagePuller", "ResolvedImage"]

DOWNLOADS = "downloads"
"""Directory of the store with blobs that are being downloaded. A later pull continues them."""
_MAX_INDEXES = 4
_MAX_LAYER_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedImage:
    """An image of a registry for this machine's architecture."""

    digest: str
    """Digest of the configuration, which covers the content of all layers."""
    image: OciImage
    sizes: Mapping[str, int]
    """Compressed bytes of each layer, by `diff_id`."""


class ImagePuller:
    """The pull of one image to a store. `report` receives the bytes that are here whenever they change."""

    def __init__(
        self, store: TemplateStore, name: ImageReference, client: RegistryClient, report: Callable[[int], None]
    ) -> None:
        self._store, self._name, self._client, self._report = store, name, client, report
        self._lock = threading.Lock()
        self._done = 0
        self._downloads = store.directory / DOWNLOADS

    def resolve(self) -> ResolvedImage:
        """Read manifest and configuration. Raises PullFailed."""
        architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
        version = self._name.version
        with _invalid_image_errors():
            for _ in range(_MAX_INDEXES):
                manifest = _parse_json(self._client.manifest(version)[0])
                if not is_index(manifest):
                    return self._read_image(manifest, architecture)
                version = select_image(manifest, architecture, first=True)
        raise PullFailed(ImageFailure.INVALID, "the indexes of the image are nested too deeply")

    def missing_bytes(self, resolved: ResolvedImage) -> int:
        """Return the compressed bytes of the layers that the store lacks."""
        with ExitStack() as locks:
            missing = [each for each in resolved.sizes if find_stored_layer(self._store, each, locks) is None]
        return sum(resolved.sizes[each] for each in missing)

    def pull(self, resolved: ResolvedImage, *, budget: ImportBudget, parallel: int) -> Template:
        """Download and unpack the missing layers, then record the image. Raises PullFailed."""
        self._downloads.mkdir(mode=0o700, exist_ok=True)
        layers = {layer.diff_id: layer for layer in resolved.image.layers}
        with ExitStack() as locks, _invalid_image_errors():
            with ThreadPoolExecutor(parallel) as workers:
                pending = {
                    diff_id: workers.submit(self._store_layer, layer, resolved.sizes[diff_id], budget, locks)
                    for diff_id, layer in layers.items()
                }
                try:
                    stored = {diff_id: each.result() for diff_id, each in pending.items()}
                except BaseException:
                    workers.shutdown(wait=False, cancel_futures=True)
                    raise
            return self._record(resolved, [stored[each.diff_id] for each in resolved.image.layers])

    def _record(self, resolved: ResolvedImage, layers: Sequence[StoredLayer]) -> Template:
        with self._store.exclusive_lock():
            name = str(self._name)
            template = make_template(
                self._store, resolved.image, layers, name=name, digest=resolved.digest, source=name
            )
            self._store.lock_path(name)
            return template

    def _read_image(self, manifest: dict[str, Any], architecture: str) -> ResolvedImage:
        described = manifest.get("config")
        digest = str(described.get("digest")) if isinstance(described, dict) else ""
        blob_path(digest)  # raises TemplateError for an invalid digest
        image = parse_oci_image(manifest, _parse_json(self._client.small_blob(digest)), architecture)
        sizes: dict[str, int] = {}
        for layer, entry in zip(image.layers, manifest["layers"], strict=True):
            size = entry.get("size")
            if not isinstance(size, int) or not 0 <= size <= _MAX_LAYER_BYTES:
                raise TemplateError("the manifest of the image has a layer without a valid size")
            sizes[layer.diff_id] = size
        return ResolvedImage(digest=digest, image=image, sizes=sizes)

    def _store_layer(self, layer: ImageLayer, size: int, budget: ImportBudget, locks: ExitStack) -> StoredLayer:
        """Store one layer. Another process that needs it waits, and then finds it in the store."""
        if layer.digest is None:
            raise TemplateError("the manifest of the image has a layer without a digest")
        target = self._downloads / layer.digest.replace(":", "-")
        with _exclusive_file(target.with_suffix(".lock")), ExitStack() as own:
            there = find_stored_layer(self._store, layer.diff_id, own)
            if there is None:
                resumed = target.exists()
                try:
                    there = self._download_and_unpack(layer, size, target, budget, own)
                except TemplateError:
                    if not resumed:
                        raise
                    # The earlier part was damaged.
                    there = self._download_and_unpack(layer, size, target, budget, own)
            else:
                self._add(size)
            with self._lock:
                locks.enter_context(own.pop_all())
        return there

    def _download_and_unpack(
        self, layer: ImageLayer, size: int, target: Path, budget: ImportBudget, locks: ExitStack
    ) -> StoredLayer:
        before = target.stat().st_size if target.exists() else 0
        self._add(min(before, size) if before <= size else 0)
        self._client.download(str(layer.digest), size, target, self._add)
        try:
            return store_layer(self._store, _DownloadedBlob(target), layer, budget, locks)
        except TemplateError:
            self._add(-size)
            raise
        finally:
            target.unlink(missing_ok=True)

    def _add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._report(self._done)


class _DownloadedBlob:
    """One downloaded file, as the only blob of an image."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, path: str) -> bool:
        return True

    def open(self, path: str) -> BinaryIO:
        return open(self._path, "rb")


@contextmanager
def _exclusive_file(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextmanager
def _invalid_image_errors() -> Iterator[None]:
    try:
        yield
    except TemplateError as error:
        raise PullFailed(ImageFailure.INVALID, str(error)) from None
    except OSError as error:
        raise PullFailed(ImageFailure.STORE_FULL, f"the image cannot be stored: {error.strerror}") from None


def _parse_json(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise TemplateError("a manifest or configuration of the image is not JSON") from None
    if not isinstance(value, dict):
        raise TemplateError("a manifest or configuration of the image is not a JSON object")
    return value
