"""The queues of a project as their administrators see them: one per task, made by its first action."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ChangeQueue", "Queue", "QueueList"]


class ChangeQueue(BaseModel):
    """What to change of a queue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued: int | None = Field(
        ge=1,
        le=2**31 - 1,
        description="Actions that may wait in it; beyond that a submission is answered 429 `queue_full`. What waits"
        " already stays. null: as many as this installation allows by default",
    )


class Queue(BaseModel):
    """A task's queue and what is in it now."""

    id: int
    task: str
    max_queued: int | None = Field(default=None, description="Absent: the default of this installation")
    waiting: int = Field(description="Actions that are queued")
    running: int = Field(description="Actions that are granted or running")


class QueueList(BaseModel):
    """In order of their making. `next_cursor` is absent on the last page."""

    items: list[Queue]
    next_cursor: int | None = None
