"""Actions in the form in which clients submit and see them."""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from arl_core.domain.states import ActionOutcome, ActionState
from arl_wire.actions.elasticity import MAX_CPU_CORES, AmdahlElasticity, NoElasticity, TableElasticity
from arl_wire.calls import CallRequest, CallResponse, EndpointName
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem, ServiceName
from arl_wire.validation import (
    Base64,
    CustomResources,
    OutputStream,
    StrictModel,
    validate_argument,
    validate_no_nul,
    validate_relative_path,
)

__all__ = [
    "HOST_TEMPLATE",
    "Action",
    "ActionListResponse",
    "ActionResult",
    "ActionTimes",
    "AmdahlElasticity",
    "CpuRange",
    "DemandSpec",
    "ElasticDemand",
    "EnvironmentSelector",
    "NoElasticity",
    "OutputStream",
    "SubmitActionRequest",
    "TableElasticity",
    "WaitRequest",
    "WaitResponse",
]

HOST_TEMPLATE = "host"
"""Name of the template that every node has."""
MAX_MIB = 64 << 20
MAX_FILES = 1000
MAX_COMMAND_CHARACTERS = 256 << 10


def _cpu_tag(value: Any) -> str:
    return "range" if isinstance(value, (dict, CpuRange)) else "cores"


Text = Annotated[str, AfterValidator(validate_no_nul)]
Argument = Annotated[Text, AfterValidator(validate_argument)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", min_length=1, max_length=128)]
TemplateName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
SessionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
ProfileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=64)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=64)]
LabelValue = Annotated[Text, StringConstraints(max_length=256)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
RelativePath = Annotated[Text, StringConstraints(min_length=1, max_length=1024), AfterValidator(validate_relative_path)]
Cpu = Annotated[float, Field(ge=0.01, le=MAX_CPU_CORES, allow_inf_nan=False)]


PROGRAM_FIELDS = ("argv", "source", "session", "command", "cwd", "stdin", "stdin_open")
SANDBOX_FIELDS = (*PROGRAM_FIELDS, "env", "files", "fetch", "environment", "demand", "elasticity", "require")


class CpuRange(StrictModel):
    """A range of cores: the action needs at least `min` and can use up to `max`."""

    min: Cpu
    max: Cpu

    @model_validator(mode="after")
    def _check_order(self) -> "CpuRange":
        if self.max < self.min:
            raise ValueError("max must not be below min")
        return self


class DemandSpec(StrictModel):
    """The resources that the action needs while it runs.

    Whole cores are exclusive; a fraction is a ceiling on shared cores. `memory_mib` and `disk_mib` of a trajectory's
    environment are set by its first action and stay allocated until the environment ends.
    """

    cpu: Annotated[
        Annotated[Cpu, Tag("cores")] | Annotated[CpuRange, Tag("range")],
        Discriminator(_cpu_tag),
        Field(
            description='Number of cores, or a range `{"min": …, "max": …}` for an action that can use more cores than'
            " it needs"
        ),
    ] = 1
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
        " name: an image that was imported on the node; all its files are writable. Absent: the template"
        " of the trajectory's environment, or `host`",
    )
    idle_ttl_s: int = Field(default=3600, ge=1, le=30 * 86400)


class SubmitActionRequest(StrictModel):
    """A bounded command or Python program, a `score` of `items` by a reward `service`, or a `call` to an `endpoint`.

    The other kinds run no program and need no cores. `environment.create` creates the trajectory's environment.
    `environment.files` writes `files` into it and returns those of `fetch`. The server uses `environment.transfer` to
    queue the transfers of `/v1/environments/{id}/archive`; submitted directly, it ends as `transfer_abandoned`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task": "ai-coding",
                    "trajectory": "s12-p3-r5",
                    "kind": "exec",
                    "argv": ["python3", "-c", "print(1)"],
                    "environment": {"scope": "trajectory"},
                    "demand": {"cpu": 1, "memory_mib": 256},
                    "timeout_s": 60,
                }
            ]
        }
    )

    kind: Literal["exec", "score", "call", "environment.create", "environment.files", "environment.transfer"] = "exec"
    task: Name = Field(description="RL workload to which the action belongs")
    trajectory: Name | None = Field(default=None, description="Rollout to which the action belongs")
    profile: ProfileName | None = Field(
        default=None,
        description="Name of the workload for duration estimates, such as the name of a repository whose tests run."
        " Absent: the name of the program",
    )
    step: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Training step, used in metrics and reports")
    environment: EnvironmentSelector = EnvironmentSelector()
    argv: list[Argument] | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Program and its arguments; they are not passed through a shell",
    )
    source: Text | None = Field(
        default=None, max_length=8 << 20, description="Python program that runs as `__main__`; replaces `argv`"
    )
    session: SessionName | None = Field(
        default=None,
        description="Name of a bash session in the persistent environment that runs `command`. The session keeps its"
        " directory, variables and jobs. Its first use opens it; `exit` or the end of the environment"
        " closes it",
    )
    command: Text | None = Field(
        default=None,
        max_length=MAX_COMMAND_CHARACTERS,
        description="Shell text of any number of lines for `session`; replaces `argv` and `source`. `stdout` contains"
        " everything that the session's terminal shows",
    )
    stdin: Text = Field(default="", max_length=8 << 20)
    stdin_open: bool = Field(
        default=False,
        description="True to keep standard input open after `stdin`, so that `POST /v1/actions/{id}/input` can send"
        " more",
    )
    env: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    cwd: RelativePath | None = Field(
        default=None, description="Directory in which the program starts, relative to the working directory"
    )
    files: dict[RelativePath, Base64] = Field(
        default_factory=dict,
        max_length=MAX_FILES,
        description="Files to write before the program starts: path to content in base64",
    )
    fetch: list[RelativePath] = Field(
        default_factory=list,
        max_length=MAX_FILES,
        description="Paths of files to return after the run, at most 8 MiB in total",
    )
    timeout_s: float = Field(
        default=300,
        ge=1e-6,
        le=86400,
        allow_inf_nan=False,
        description="Maximum run time in seconds, from the start of the program",
    )
    demand: DemandSpec = DemandSpec()
    service: ServiceName | None = Field(
        default=None, description="Reward service that scores `items`; only for kind `score`. See `/v1/reward-services`"
    )
    items: list[ScoreItem] = Field(
        default_factory=list,
        max_length=MAX_ITEMS,
        description="Items to score; only for kind `score`. The kind of the service determines their fields",
    )
    endpoint: EndpointName | None = Field(
        default=None, description="Endpoint to call; only for kind `call`. See `/v1/endpoints`"
    )
    request: CallRequest | None = Field(
        default=None, description="HTTP request to send to `endpoint`; only for kind `call`"
    )
    elasticity: Annotated[AmdahlElasticity | TableElasticity | NoElasticity, Field(discriminator="model")] = (
        NoElasticity(model="none")
    )
    priority: int = Field(
        default=0, ge=-10, le=10, description="Order among the actions of the same task; a higher value goes first"
    )
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=30 * 86400,
        allow_inf_nan=False,
        description="Seconds from admission within which the action must end to be useful. An action that is still"
        " queued then, or that could no longer end in time, settles as `deadline_in_queue`. A running"
        " action is never killed",
    )
    retries: int = Field(
        default=0,
        ge=0,
        le=10,
        description="Maximum number of further attempts after an `infra_error`; no other outcome is retried",
    )
    idempotent: bool = Field(
        default=False,
        description="True if the action may run twice. Then it may be retried in a trajectory's environment, and a"
        " call may be sent again after a failure that leaves its effect unknown",
    )
    require: list[Literal["cpu", "memory", "pids", "disk"]] = Field(
        default_factory=list,
        max_length=4,
        description="Limits that must be enforced; the action is refused if no node enforces them",
    )
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)

    @model_validator(mode="after")
    def _check_consistency(self) -> "SubmitActionRequest":
        if self.kind != "score" and (self.service is not None or self.items):
            raise ValueError(
                f"kind `{self.kind}` does not score items: remove `service` and `items`, or use kind `score`"
            )
        if self.kind != "call" and (self.endpoint is not None or self.request is not None):
            raise ValueError(
                f"kind `{self.kind}` does not call an endpoint: remove `endpoint` and `request`, or use kind `call`"
            )
        if self.kind in ("score", "call"):
            self._check_no_sandbox_fields()
            return self
        if self.kind == "exec":
            self._check_one_program()
        else:
            self._check_no_program()
        if self.environment.id is not None:
            if self.kind == "environment.create":
                raise ValueError(
                    "environment.id must name an existing environment, and kind `environment.create` creates one: use"
                    " scope `trajectory` and a trajectory"
                )
        elif self.environment.scope == "trajectory" and self.trajectory is None:
            raise ValueError("environment.scope `trajectory` needs a trajectory")
        return self

    def _check_no_program(self) -> None:
        if given := [name for name in PROGRAM_FIELDS if getattr(self, name)]:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove {' and '.join(given)}")
        if self.demand.resources:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove demand.resources")
        if self.environment.scope != "trajectory" and self.environment.id is None:
            raise ValueError(
                f"kind `{self.kind}` needs a persistent environment: set environment.scope to `trajectory`, or give an"
                " environment.id"
            )
        if self.kind in ("environment.files", "environment.transfer") and self.env:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove env")
        if self.kind == "environment.transfer" and (self.files or self.fetch):
            raise ValueError(
                "kind `environment.transfer` does not accept files: upload them with `PUT"
                " /v1/environments/{id}/archive`"
            )

    def _check_no_sandbox_fields(self) -> None:
        if self.kind == "call" and (self.endpoint is None or self.request is None):
            raise ValueError("kind `call` needs an endpoint and a request")
        if self.request is not None and self.retries and not (self.idempotent or self.request.is_idempotent):
            raise ValueError(
                f"retries could send this {self.request.method} request twice: set `idempotent` to true if that is safe"
            )
        if self.kind == "score" and (self.service is None or not self.items):
            raise ValueError("kind `score` needs a service and items")
        if sum(item.characters for item in self.items) > MAX_CHARACTERS:
            raise ValueError(f"items must have at most {MAX_CHARACTERS} characters in total: use several actions")
        if given := [name for name in SANDBOX_FIELDS if getattr(self, name) != _default_value(name)]:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove {' and '.join(given)}")

    def _check_one_program(self) -> None:
        if [self.argv, self.source, self.session].count(None) != 2:
            raise ValueError("give exactly one of argv, source and session")
        if (self.session is None) != (self.command is None):
            raise ValueError("session and command must be given together")
        if self.session is not None:
            self._check_session()
        if self.argv is not None and not self.argv[0]:
            raise ValueError("argv.0 must not be empty: it is the name of the program")

    def _check_session(self) -> None:
        if self.cwd is not None or self.env:
            raise ValueError("a session keeps its own directory and variables: change them in `command`")
        if self.environment.id is None and self.environment.scope != "trajectory":
            raise ValueError(
                "a session needs a persistent environment: set environment.scope to `trajectory`, or give an"
                " environment.id"
            )


@cache
def _default_value(name: str) -> Any:
    """Return the default of a field; cached because Pydantic needs 50 µs to compute it."""
    return SubmitActionRequest.model_fields[name].get_default(call_default_factory=True)


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


class Action(BaseModel):
    """The current state of an action. A settled action never changes again."""

    id: UUID
    task: str
    trajectory: str | None = None
    kind: str
    environment: UUID | None = Field(default=None, description="Persistent environment in which the action was granted")
    state: ActionState
    outcome: ActionOutcome | None = None
    reason: str | None = Field(
        default=None, description="Limit that the action exceeded, or cause of its `infra_error`"
    )
    message: str | None = None
    grant_no: int = 0
    failures: int = 0
    node: str | None = None
    class_key: str = Field(
        default="", description="Key of the class of similar actions. Duration estimates and scheduling use the class"
    )
    demand: dict[str, int] = Field(default_factory=dict, description="Minimum amounts of the demand")
    elastic: ElasticDemand | None = Field(
        default=None, description="Elastic part of the demand. Absent if the demand is fixed"
    )
    gang: UUID | None = Field(default=None, description="Id that all actions of the same gang have")
    allocation: dict[str, int] | None = None
    cancel_requested: bool = False
    created_at: datetime
    deadline_at: datetime | None = None
    granted_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    times: ActionTimes = ActionTimes()
    labels: dict[str, str] = Field(default_factory=dict)
    result: ActionResult | None = None


class ActionListResponse(BaseModel):
    """A page of actions, newest first. `next_cursor` is absent on the last page."""

    items: list[Action]
    next_cursor: str | None = None


class WaitRequest(StrictModel):
    """A request to wait until any or all of these actions are settled."""

    ids: list[UUID] = Field(min_length=1, max_length=1000)
    until: Literal["any", "all"] = "all"
    timeout_s: float = Field(default=30, ge=0, le=55, allow_inf_nan=False)


class WaitResponse(BaseModel):
    """The settled actions with results. `pending` are not settled yet; `unknown` ids are not in your project."""

    settled: list[Action]
    pending: list[UUID]
    unknown: list[UUID] = Field(default_factory=list)
