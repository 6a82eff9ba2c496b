"""Images that queued actions need, and their state on the nodes as of the last poll."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from arl_core.domain.model import ActionClass, QueuedAction
from arl_core.images.pull_planning import ImageCopy, ImageFailure
from arl_core.queue.queue_index import QueueIndex
from arl_scheduler.queries.poll_result import NodeImageRow, required_image

__all__ = ["ImageTable", "WantedImage", "wanted_images"]


@dataclass(slots=True)
class WantedImage:
    """The queued actions that need an image and have no node yet."""

    cls: ActionClass
    """Class of the oldest action."""
    oldest_submitted: float
    _sources: list[Iterable[QueuedAction]] = field(default_factory=list)

    def actions(self) -> Iterator[QueuedAction]:
        """Yield the actions, and all members of their gangs."""
        for action in chain.from_iterable(self._sources):
            yield action
            yield from action.gang_members

    def add(self, cls: ActionClass, submitted: float, actions: Iterable[QueuedAction]) -> None:
        """Add actions of one class, of which the oldest was `submitted`."""
        if submitted < self.oldest_submitted:
            self.cls, self.oldest_submitted = cls, submitted
        self._sources.append(actions)


class ImageTable:
    """The images of the last poll. `is_poll_needed` is True if an action needs an image that it did not read."""

    def __init__(self) -> None:
        self._polled: frozenset[str] = frozenset()
        self._rows: dict[str, list[NodeImageRow]] = {}
        self.is_poll_needed = False

    def note(self, cls: ActionClass) -> None:
        """Note the class of a queued action."""
        image = required_image(cls)
        if image is not None and image not in self._polled:
            self.is_poll_needed = True

    def begin(self, names: Iterable[str], rows: Iterable[NodeImageRow]) -> None:
        """Replace the rows by those of a poll that asked for these images."""
        self._polled, self.is_poll_needed, self._rows = frozenset(names), False, {}
        for row in rows:
            self._rows.setdefault(row.name, []).append(row)

    def rows(self, name: str) -> list[NodeImageRow]:
        """Return the rows of an image, those with most progress first."""
        order: Mapping[str, int] = {"ready": 0, "pulling": 1, "wanted": 2, "failed": 3}
        return sorted(self._rows.get(name, ()), key=lambda row: (order[row.state], -row.bytes_done, row.node))

    def copies(self, name: str) -> list[ImageCopy]:
        """Return the state of an image on each node that has a row of it."""
        return [
            ImageCopy(node=row.node, state=row.state, changed_at=row.changed_at, reason=_failure_of(row))
            for row in self._rows.get(name, ())
        ]

    def missing_image(self, cls: ActionClass) -> str | None:
        """Return the image that the class needs and that no node has, or None."""
        image = required_image(cls)
        if image is None or any(row.state == "ready" for row in self._rows.get(image, ())):
            return None
        return image


def wanted_images(queue: QueueIndex) -> dict[str, WantedImage]:
    """Return the images that queued actions without a node need. Costs O(classes)."""
    wanted: dict[str, WantedImage] = {}
    for bucket in queue.buckets_on(None):
        first = bucket.first
        classes = {each.variant: each for each in (bucket.cls, *(member.cls for member in first.gang_members))}
        for cls in classes.values():
            if (name := required_image(cls)) is not None:
                wanted.setdefault(name, WantedImage(cls, first.submitted)).add(cls, first.submitted, bucket)
    return wanted


def _failure_of(row: NodeImageRow) -> ImageFailure | None:
    if row.state != "failed":
        return None
    try:
        return ImageFailure(row.reason or "")
    except ValueError:  # of a newer version
        return ImageFailure.INTERRUPTED
