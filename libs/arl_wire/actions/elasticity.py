"""Declarations of how more of a resource shortens an action."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arl_wire.validation import StrictModel

__all__ = ["MAX_CPU_CORES", "AmdahlElasticity", "NoElasticity", "TableElasticity"]

MAX_CPU_CORES = 4096


class _ResizableElasticity(StrictModel):
    resizable: Literal["none", "grow", "any"] = Field(
        default="none",
        description="Changes of the number of cores that the running action can use. `any`: it starts workers for its"
        " maximum and continues with fewer cores. `grow`: it benefits only from more cores. `none`: no"
        " change",
    )


class AmdahlElasticity(_ResizableElasticity):
    """A declaration by Amdahl's law: d(k) = d(1) * ((1 - f) + f / k)."""

    model: Literal["amdahl"]
    parallel_fraction: float = Field(ge=0, le=1)


class TableElasticity(_ResizableElasticity):
    """A table of measured seconds by number of cores."""

    model: Literal["table"]
    seconds: dict[str, Annotated[float, Field(ge=1e-4, le=1e7, allow_inf_nan=False)]] = Field(
        min_length=1, max_length=64, examples=[{"1": 8.0, "2": 4.4, "4": 2.9}]
    )

    @model_validator(mode="after")
    def _check_core_counts(self) -> "TableElasticity":
        for cores in self.seconds:
            try:
                ok = 0.01 <= float(cores) <= MAX_CPU_CORES
            except ValueError:
                ok = False
            if not ok:
                raise ValueError(f'{cores!r} is not a number of cores: use keys such as "1", "2" and "4"')
        return self


class NoElasticity(_ResizableElasticity):
    """No declaration: the scheduler learns the effect of more cores."""

    model: Literal["none"]
