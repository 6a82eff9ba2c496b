"""Resources and the environment that an action demands."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from arl_core.images.references import IMAGE_OR_TEMPLATE_PATTERN, MAX_REFERENCE_LENGTH, canonical_template
from arl_wire.actions.elasticity import MAX_CPU_CORES
from arl_wire.validation import CustomResources, StrictModel

__all__ = ["MAX_MIB", "Cpu", "CpuRange", "DemandSpec", "EnvironmentSelector", "TemplateName"]

MAX_MIB = 64 << 20

TemplateName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_REFERENCE_LENGTH,
        json_schema_extra={"pattern": IMAGE_OR_TEMPLATE_PATTERN},
    ),
    AfterValidator(canonical_template),
]
"""Name of a template, or reference of an image in its full form."""
Cpu = Annotated[float, Field(ge=0.01, le=MAX_CPU_CORES, allow_inf_nan=False)]


def _cpu_tag(value: Any) -> str:
    return "range" if isinstance(value, (dict, CpuRange)) else "cores"


class CpuRange(StrictModel):
    """Cores of an action: at least `min`, and up to `max` if the action can use more."""

    min: Cpu = Field(description="Cores that the action gets over any second if it wants them")
    max: Cpu | None = Field(
        default=None,
        description="Most cores that the action may use. Absent: `min` for exclusive cores, no limit for shared cores",
    )
    exclusive: bool | None = Field(
        default=None,
        description="True for whole cores that no other action uses. False to share cores with other actions. Absent:"
        " the default of the system",
    )

    @model_validator(mode="after")
    def _check_amounts(self) -> "CpuRange":
        if self.max is not None and self.max < self.min:
            raise ValueError("max must not be below min")
        if self.exclusive and any(cores % 1 for cores in (self.min, self.max or self.min)):
            raise ValueError("exclusive cores must be whole numbers")
        return self


class DemandSpec(StrictModel):
    """The resources that the action needs while it runs.

    Exclusive cores are whole and pinned. Shared cores are divided by the kernel. `memory_mib` and `disk_mib` of a
    trajectory's environment are set by its first action and stay allocated until the environment ends.
    """

    cpu: (
        Annotated[
            Annotated[Cpu, Tag("cores")] | Annotated[CpuRange, Tag("range")],
            Discriminator(_cpu_tag),
        ]
        | None
    ) = Field(
        default=None,
        description='Number of cores, or `{"min": …, "max": …, "exclusive": …}`. Absent: one exclusive core, or shared'
        " cores of which the action gets at least a tenth, as the system is configured",
    )
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB, description="Size of the writable working directory in MiB")
    pids: int = Field(
        default=256, ge=1, le=1 << 20, description="Maximum number of processes and threads at the same time"
    )
    resources: CustomResources = Field(
        default_factory=dict,
        description="Further resources that nodes declare, such as `network_mbps` or accelerators, in whole units. The"
        " scheduler reserves them while the action runs; nothing limits their actual use",
    )


class EnvironmentSelector(StrictModel):
    """The environment in which the action runs.

    `ephemeral`: a new environment that ends with the action. `trajectory`: a persistent environment with files and
    processes. The trajectory's first action creates it. It ends with the trajectory, or after `idle_ttl_s` seconds
    without use. An `id` names an existing environment.
    """

    id: UUID | None = Field(
        default=None, description="Id of an existing environment; replaces `scope` and `trajectory`"
    )
    scope: Literal["ephemeral", "trajectory"] = "ephemeral"
    template: TemplateName | None = Field(
        default=None,
        description="Template of a new environment. `host`: the node's own system directories, read-only. Any other"
        " name: an image that was imported on the node; all its files are writable. With a registry host, a tag or a"
        " digest, such as `python:3.12`: an image that the node pulls. Absent: the template of the trajectory's"
        " environment, or `host`",
    )
    idle_ttl_s: int = Field(default=3600, ge=1, le=30 * 86400)
