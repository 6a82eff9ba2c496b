"""What runs far longer than others like it: `GET /v1/admin/stragglers`."""

from uuid import UUID

from pydantic import BaseModel, Field

__all__ = ["StragglerInfo", "StragglerListResponse"]


class StragglerInfo(BaseModel):
    """An action that runs for longer than `limit_s`."""

    id: UUID
    task: str
    trajectory: str | None = None
    node: str | None = None
    amounts: dict[str, int]
    elapsed_s: float = Field(description="Since it began to run")
    limit_s: float = Field(
        description="Five times the median of its class with what it has, or what one run in a hundred exceeds if that"
        " is more; 8 runs have to be known"
    )


class StragglerListResponse(BaseModel):
    """Those of the caller's project, the furthest beyond their limits first."""

    items: list[StragglerInfo]
