"""Images on nodes, as administrators see and request them."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from arl_core.images.references import IMAGE_REFERENCE_PATTERN, MAX_REFERENCE_LENGTH, canonical_image
from arl_wire.admin.pools import PoolName
from arl_wire.environments.images import ImageState
from arl_wire.validation import StrictModel

__all__ = [
    "ImageListResponse",
    "ImageName",
    "ImageRequestsResponse",
    "NodeImage",
    "PullImagesRequest",
    "RemoveImagesRequest",
]

ImageName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_REFERENCE_LENGTH, json_schema_extra={"pattern": IMAGE_REFERENCE_PATTERN}),
    AfterValidator(canonical_image),
]
ImageNames = Annotated[list[ImageName], Field(min_length=1, max_length=1000)]


class NodeImage(BaseModel):
    """An image on one node."""

    name: str = Field(description="Reference of the image in its full form")
    node: str
    cell: int | None = Field(default=None, description="Cell of the node. Only a router of several cells returns it")
    state: ImageState = Field(description="`wanted`, `pulling`, `ready` or `failed`")
    digest: str | None = Field(default=None, description="Digest of the configuration, which covers all layers")
    bytes: int | None = Field(default=None, description="Compressed bytes of all layers")
    bytes_done: int = Field(description="Compressed bytes that are on the node")
    unpacked_bytes: int | None = Field(default=None, description="Bytes of the unpacked layers")
    reason: str | None = Field(default=None, description="Reason of a failed pull, such as `image_not_found`")
    message: str | None = Field(default=None, description="Why the pull waits or failed")
    used_at: datetime | None = Field(default=None, description="Last use that the node has reported")
    changed_at: datetime = Field(description="Last change of the state")


class ImageListResponse(BaseModel):
    """The images of all nodes, by name and node."""

    items: list[NodeImage]


class PullImagesRequest(StrictModel):
    """A request to pull images to nodes before actions need them. A tag that is there is resolved again."""

    images: ImageNames = Field(description="References of images")
    pool: PoolName | None = Field(default=None, description="Pool of the nodes. Absent: all nodes that pull images")


class RemoveImagesRequest(StrictModel):
    """A request to remove images from all nodes. Images that environments use stay."""

    images: ImageNames = Field(description="References of images")


class ImageRequestsResponse(BaseModel):
    """The number of requests to nodes."""

    count: int = Field(description="Pairs of a node and an image for which a pull or a removal was requested")
