"""Images that nodes pull."""

from typing import Literal

from pydantic import BaseModel, Field

__all__ = ["ImagePullProgress", "ImageState"]

ImageState = Literal["wanted", "pulling", "ready", "failed"]


class ImagePullProgress(BaseModel):
    """The pull of the image that a queued action waits for."""

    image: str = Field(description="Reference of the image in its full form")
    state: ImageState = Field(
        description="`wanted`: the pull has not begun. `pulling`: the node downloads and unpacks layers. `ready`:"
        " environments on the node can start from the image. `failed`: the pull failed"
    )
    node: str | None = Field(default=None, description="Node that pulls it. Absent until a node was chosen")
    bytes: int | None = Field(default=None, description="Compressed bytes of all layers. Absent until they are known")
    bytes_done: int = Field(default=0, description="Compressed bytes that are on the node")
    message: str | None = Field(default=None, description="Why the pull waits or failed")
