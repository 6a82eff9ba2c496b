"""Choice of the images that a node removes to make room. The longest unused go first; none in use is removed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["StoredImage", "choose_evictions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of a node's store."""

    name: str
    used_at: float
    """Time of the last use."""
    layers: frozenset[str]
    is_pinned: bool = False
    """True while it is in use or about to be used."""


def choose_evictions(
    images: Sequence[StoredImage], layer_bytes: Mapping[str, int], *, kept_layers: Collection[str], bytes_to_free: int
) -> list[str]:
    """Return the names of the images to remove, longest unused first.

    A layer is freed with the last image that has it. `kept_layers` are those of templates. The result frees less than
    `bytes_to_free` if all other images are pinned.
    """
    users = Counter(layer for image in images for layer in image.layers)
    users.update(kept_layers)
    chosen: list[str] = []
    for image in sorted(images, key=lambda each: (each.used_at, each.name)):
        if bytes_to_free <= 0:
            break
        if image.is_pinned:
            continue
        chosen.append(image.name)
        users.subtract(image.layers)
        bytes_to_free -= sum(layer_bytes.get(layer, 0) for layer in image.layers if users[layer] == 0)
    return chosen
