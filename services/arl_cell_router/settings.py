from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from arl_kit.settings import ProcessSettings
from arl_wire.cells import MAX_CELL

__all__ = ["CellRouterSettings"]

CellNumber = Annotated[int, Field(ge=1, le=MAX_CELL)]
CellWeight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class CellRouterSettings(ProcessSettings):
    """The settings of the router in front of several cells."""

    cells: dict[CellNumber, str] = Field(
        min_length=1, description="Base URL of the gateway of each cell, by the number of the cell"
    )
    cell_weights: dict[CellNumber, CellWeight] = Field(
        default_factory=dict,
        description="Share of each cell in new trajectories, by its number. Absent: 1. 0: no new trajectories",
    )
    fallback_cell: CellNumber | None = Field(
        default=None,
        description="Cell to which the router sends ids that name no cell of it: the system that made ids before it had"
        " a number. Absent: such ids are unknown",
    )
    cell_check_s: float = Field(
        default=1.0,
        gt=0,
        le=30,
        description="Seconds between health checks of a cell. A check fails after twice this time, and after two"
        " failed checks the cell gets no requests",
    )
    cell_answer_s: float = Field(
        default=3.0, gt=0, le=60, description="Seconds that a list and the end of a trajectory wait for a cell"
    )
    cell_batch_s: float = Field(
        default=10.0, gt=0, le=600, description="Seconds that a batch with items of several cells waits for a cell"
    )
    cell_connections: int = Field(
        default=2048,
        ge=1,
        le=65536,
        description="Maximum number of connections to a cell, without those of the health checks. Each request, wait"
        " and stream that is open uses one. Further requests get 503 with the code `cell_busy`",
    )
    max_body_mib: int = Field(default=64, ge=1, le=1024, description="Maximum MiB of a request body")
    max_archive_mib: int = Field(
        default=1024, ge=1, le=1 << 20, description="Maximum MiB of an archive of an environment's files"
    )
    body_timeout_s: float = Field(
        default=30, gt=0, description="Seconds to receive a body, plus one second for each 64 KiB of it"
    )

    @field_validator("cells")
    @classmethod
    def _check_urls(cls, cells: dict[int, str]) -> dict[int, str]:
        for number, url in cells.items():
            if not url.startswith(("http://", "https://")) or "@" in url or "?" in url or "#" in url:
                raise ValueError(f"the URL of cell {number} must begin with http:// or https:// and have no user")
        urls = {number: url.rstrip("/") for number, url in cells.items()}
        if len(set(urls.values())) < len(urls):
            raise ValueError("two cells have the same URL")
        return urls

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        named = {*self.cell_weights, *([self.fallback_cell] if self.fallback_cell is not None else [])}
        if unknown := sorted(named - self.cells.keys()):
            raise ValueError(f"cell_weights or fallback_cell name cell {unknown[0]}, which is not one of cells")
        if not any(self.cell_weights.get(number, 1.0) for number in self.cells):
            raise ValueError("cell_weights: at least one cell must have a weight above 0")
        return self
