"""The result and the times of an action, and its elastic demand."""

from typing import Any

from pydantic import BaseModel, Field

from arl_wire.calls import CallResponse
from arl_wire.environments.network import NetworkUsage
from arl_wire.scores import Score
from arl_wire.validation import OutputStream

__all__ = ["ActionResult", "ActionTimes", "ElasticDemand"]


class ActionResult(BaseModel):
    """The result of the accepted attempt."""

    grant_no: int
    exit_code: int | None = None
    signal: int | None = None
    stdout: OutputStream = OutputStream()
    stderr: OutputStream = OutputStream()
    files: dict[str, str] = Field(default_factory=dict, description="Files of `fetch`: path to content in base64")
    missing_files: list[str] = Field(default_factory=list)
    cpu_s: float = 0.0
    peak_memory_mib: float = 0.0
    leftover_processes: int = Field(
        default=0, description="Processes of the action that remain in the environment; they are frozen"
    )
    enforcement: dict[str, str] = Field(
        default_factory=dict, description="Enforcement of each limit: `enforced`, `best_effort` or `absent`"
    )
    network: NetworkUsage | None = Field(default=None, description="Use of the network. Absent if the action had none")
    scores: list[Score] | None = Field(
        default=None, description="Scores in the order of the items; only for kind `score`"
    )
    response: CallResponse | None = Field(
        default=None, description="Response of the endpoint, if one arrived; only for kind `call`"
    )


class ActionTimes(BaseModel):
    """The parts of the action completion time in seconds: act_s = queue_s + run_s + overhead_s."""

    queue_s: float | None = None
    run_s: float | None = None
    counted_s: float | None = Field(
        default=None,
        description="Part of `run_s` that counts for `timeout_s`: without the time in which the program waited for"
        " shared cores. Absent if no program ran. With more than one guaranteed core it may exceed `run_s`",
    )
    overhead_s: float | None = None
    act_s: float | None = None


class ElasticDemand(BaseModel):
    """The elastic resource of an action, its range and its elasticity."""

    resource: str
    min: int
    max: int
    step: int = Field(description="Difference between two adjacent amounts that the action can get")
    elasticity: dict[str, Any] = Field(description="Declared elasticity, in amounts of the resource")
    resizable: str = "none"
