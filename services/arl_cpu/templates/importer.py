"""Import and removal of templates."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.image_sources import identify_source, open_source, pack_directory, read_image
from arl_cpu.templates.layer_store import (
    StoredLayer,
    archive_errors,
    digest_of_layer,
    home_directory,
    remove_unused_layers,
    store_layer,
    sync_layers,
    unpack_layer,
    visible_layers,
)
from arl_cpu.templates.oci_image import OciImage
from arl_cpu.templates.template import Template, TemplateError, check_name
from arl_cpu.templates.template_store import TemplateStore, UnknownTemplate, keeps_owners
from arl_store.files import replace_file

__all__ = ["import_template", "make_template", "remove_record", "remove_template"]


def import_template(store: TemplateStore, path: Path, name: str, *, budget: ImportBudget) -> Template:
    """Import a template completely or not at all. Layers in the store are not unpacked again. Raises TemplateError.

    An environment from an earlier template of this name keeps its files.
    """
    check_name(name)
    kind = identify_source(path)
    with store.exclusive_lock():
        remove_unused_layers(store)
    with ExitStack() as locks, store.exclusive_lock():
        if kind == "directory":
            image = OciImage(())
            layers = [_store_directory(store, path, budget, locks)]
            digest = digest_of_layer(layers[0].name)
        else:
            with archive_errors(path), open_source(path) as blobs:
                image, digest = read_image(blobs)
                layers = [store_layer(store, blobs, layer, budget, locks) for layer in image.layers]
        template = make_template(store, image, layers, name=name, digest=digest, source=str(path))
    with store.exclusive_lock():
        remove_unused_layers(store)
    return template


def make_template(
    store: TemplateStore, image: OciImage, layers: Sequence[StoredLayer], *, name: str, digest: str, source: str
) -> Template:
    """Write the record of a template whose layers are in the store, lowest first. Return the template."""
    layers = visible_layers(store, list(layers))
    # One directory cannot be two layers of an overlay. The highest occurrence counts.
    layers = list({layer.name: layer for layer in reversed(layers)}.values())[::-1]
    sync_layers(store.layers_dir)
    template = Template(
        name=name,
        digest=digest,
        source=source,
        layers=tuple(layer.name for layer in layers),
        bytes=sum(layer.bytes for layer in layers),
        env=image.env,
        workdir=image.workdir,
        home=home_directory(store, layers),
        user=image.user,
        has_owners=keeps_owners(),
        left_out=sum(layer.left_out for layer in layers),
    )
    replace_file(store.record_path(name), template.dumps())
    return template


def remove_template(store: TemplateStore, name: str) -> None:
    """Remove a template and its exclusive layers.

    Raises UnknownTemplate, or TemplateInUse while an environment uses it.
    """
    check_name(name)
    with store.exclusive_lock():
        remove_unused_layers(store)
        remove_record(store, name)
        remove_unused_layers(store)


def remove_record(store: TemplateStore, name: str) -> None:
    """Remove the record of a template or image; its layers stay. The caller has the exclusive lock.

    Raises UnknownTemplate, or TemplateInUse while an environment uses it.
    """
    path = store.record_path(name)
    if not path.exists():
        raise UnknownTemplate(name)
    lock = store.lock_path(name)
    with store.lock_unused(path), store.lock_unused(lock):
        path.unlink()
        lock.unlink()


def _store_directory(store: TemplateStore, path: Path, budget: ImportBudget, locks: ExitStack) -> StoredLayer:
    """Store a directory as a layer. The archive passes through a pipe, so that only the layer is written to disk."""
    readable, writable = os.pipe()
    with ThreadPoolExecutor(1) as packer, open(readable, "rb") as packed:
        packing = packer.submit(_pack, path, writable)
        try:
            with archive_errors(path):
                layer = unpack_layer(store, packed, None, budget, locks)
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
