"""The images and layers in a template store, and the choice of images to remove."""

from collections.abc import Collection
from dataclasses import dataclass

from arl_core.images.eviction import StoredImage, choose_evictions
from arl_core.images.references import is_image_name
from arl_cpu.images.image_repository import PulledImage
from arl_cpu.templates.layer_store import StoredLayer, digest_of_layer, layer_directories, read_layers
from arl_cpu.templates.template_store import TemplateInUse, TemplateStore

__all__ = ["StoreState", "read_store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """What a store contains."""

    images: tuple[PulledImage, ...]
    layers: dict[str, StoredLayer]
    """All layers by directory name, also those of imported templates."""
    template_layers: frozenset[str]

    @property
    def bytes(self) -> int:
        """Return the unpacked bytes of all layers of images."""
        mine = {name for image in self.images for name in _directories(image)} - self.template_layers
        return sum(self.layers[name].bytes for name in mine if name in self.layers)

    @property
    def digests(self) -> frozenset[str]:
        """Return the digests of all layers."""
        return frozenset(digest_of_layer(name) for name in self.layers)

    def evictions(self, store: TemplateStore, bytes_to_free: int, *, kept: Collection[str]) -> list[str]:
        """Return the images to remove to free these bytes. Those in use and those in `kept` stay."""
        images = [
            StoredImage(
                name=image.name,
                used_at=image.used_at,
                layers=frozenset(each for each in _directories(image) if each in self.layers),
                is_pinned=image.name in kept or _is_used(store, image.name),
            )
            for image in self.images
        ]
        sizes = {name: layer.bytes for name, layer in self.layers.items()}
        return choose_evictions(images, sizes, kept_layers=self.template_layers, bytes_to_free=bytes_to_free)


def read_store(store: TemplateStore) -> StoreState:
    """Read the store. It costs two files per image and one per layer."""
    templates = store.list_templates()
    layers = read_layers(store)
    images = tuple(
        PulledImage(
            name=template.name,
            digest=template.digest,
            bytes=sum(layers[each].packed_bytes for each in template.layers if each in layers),
            unpacked_bytes=template.bytes,
            layers={digest_of_layer(each): layers[each].packed_bytes for each in template.layers if each in layers},
            used_at=used_at,
        )
        for template, used_at in store.list_images()
    )
    kept = frozenset(layer for each in templates if not is_image_name(each.name) for layer in each.layers)
    return StoreState(images=images, layers=layers, template_layers=kept)


def _directories(image: PulledImage) -> list[str]:
    return [name for digest in image.layers for name in layer_directories(digest)]


def _is_used(store: TemplateStore, name: str) -> bool:
    try:
        with store.lock_unused(store.lock_file(name)):
            return False
    except TemplateInUse:
        return True
    except FileNotFoundError:
        return False
