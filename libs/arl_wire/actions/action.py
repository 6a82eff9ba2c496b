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

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome, ActionState
from arl_wire.actions.elasticity import MAX_CPU_CORES, AmdahlElasticity, NoElasticity, TableElasticity
from arl_wire.calls import CallRequest, CallResponse, EndpointName
from arl_wire.errors import NotSettled
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
    """A range of cores: at least `min`, up to `max` if there are spare ones."""

    min: Cpu
    max: Cpu

    @model_validator(mode="after")
    def _check_order(self) -> "CpuRange":
        if self.max < self.min:
            raise ValueError("max is below min")
        return self


class DemandSpec(StrictModel):
    """The resources that the action needs while it runs.

    Whole cores are exclusive; a fraction is a ceiling on shared cores. `memory_mib` and `disk_mib` of a trajectory's
    environment are set by its first action and stay allocated until the environment ends.
    """

    cpu: Annotated[
        Annotated[Cpu, Tag("cores")] | Annotated[CpuRange, Tag("range")],
        Discriminator(_cpu_tag),
        Field(description="Cores, or the least and the most of them"),
    ] = 1
    memory_mib: int = Field(default=512, ge=8, le=MAX_MIB)
    disk_mib: int = Field(default=128, ge=1, le=MAX_MIB, description="Size of the writable working directory")
    pids: int = Field(default=256, ge=1, le=1 << 20, description="Processes and threads at once")
    resources: CustomResources = Field(
        default_factory=dict,
        description="What else it needs while it runs, of what nodes say that they have: `network_mbps`, accelerators."
        " Counted, and not confined: nobody else is granted it meanwhile",
    )


class EnvironmentSelector(StrictModel):
    """The environment in which the action runs.

    `ephemeral`: a new environment that ends with the action. `trajectory`: a persistent environment with files and
    processes. The trajectory's first action creates it. It ends with the trajectory, or after `idle_ttl_s` seconds
    without use. An `id` names an existing environment.
    """

    id: UUID | None = Field(default=None, description="Of a living environment; instead of scope and trajectory")
    scope: Literal["ephemeral", "trajectory"] = "ephemeral"
    template: TemplateName | None = Field(
        default=None,
        description="What it begins with: `host`, the node's own read-only system directories, or the name of an image "
        "imported there, all of which can be written. Left out: the trajectory's, or `host`",
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
    task: Name = Field(description="The RL workload this belongs to")
    trajectory: Name | None = Field(default=None, description="The rollout this belongs to")
    profile: ProfileName | None = Field(
        default=None,
        description="What runs here, for those who learn how long it takes: a repository's test suite, say. Left out: "
        "the program's name",
    )
    step: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Training step, for figures")
    environment: EnvironmentSelector = EnvironmentSelector()
    argv: list[Argument] | None = Field(
        default=None, min_length=1, max_length=4096, description="Program and arguments; no shell is involved"
    )
    source: Text | None = Field(
        default=None, max_length=8 << 20, description="A Python program, run as __main__; instead of argv"
    )
    session: SessionName | None = Field(
        default=None,
        description="A bash of this name that stays open in the environment, with its directory, variables and "
        "jobs; it is opened at its first use and ends with `exit` or with the environment. It runs `command`",
    )
    command: Text | None = Field(
        default=None,
        max_length=MAX_COMMAND_CHARACTERS,
        description="Shell text, of any number of lines; with `session`, and instead of argv and source. `stdout` is "
        "all that the session's terminal shows",
    )
    stdin: Text = Field(default="", max_length=8 << 20)
    stdin_open: bool = Field(
        default=False,
        description="Standard input stays open after `stdin`, for what is sent to /v1/actions/{id}/input meanwhile",
    )
    env: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    cwd: RelativePath | None = Field(default=None, description="Below the working directory")
    files: dict[RelativePath, Base64] = Field(
        default_factory=dict, max_length=MAX_FILES, description="Written before the start; contents in base64"
    )
    fetch: list[RelativePath] = Field(
        default_factory=list, max_length=MAX_FILES, description="Files to return, at most 8 MiB in all"
    )
    timeout_s: float = Field(
        default=300, ge=1e-6, le=86400, allow_inf_nan=False, description="Counts from the start of execution"
    )
    demand: DemandSpec = DemandSpec()
    service: ServiceName | None = Field(default=None, description="Of kind `score`: see /v1/reward-services")
    items: list[ScoreItem] = Field(
        default_factory=list, max_length=MAX_ITEMS, description="Of kind `score`: what the kind of its service takes"
    )
    endpoint: EndpointName | None = Field(default=None, description="Of kind `call`: see /v1/endpoints")
    request: CallRequest | None = Field(default=None, description="Of kind `call`: what is sent to it")
    elasticity: Annotated[AmdahlElasticity | TableElasticity | NoElasticity, Field(discriminator="model")] = (
        NoElasticity(model="none")
    )
    priority: int = Field(default=0, ge=-10, le=10, description="Higher goes first, among one task's")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=30 * 86400,
        allow_inf_nan=False,
        description="Of no use if it has not ended by then; counts from admission. Still queued then, or later than"
        " actions of its class could end in time, it settles `deadline_in_queue`. It kills nothing that runs",
    )
    retries: int = Field(default=0, ge=0, le=10, description="Attempts after an infra_error, and only after that")
    idempotent: bool = Field(
        default=False,
        description="May be retried inside a trajectory's environment; of a call: may be sent again where it is not"
        " known whether it was carried out",
    )
    require: list[Literal["cpu", "memory", "pids", "disk"]] = Field(
        default_factory=list, max_length=4, description="Limits that must be enforced, or the action is refused"
    )
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)

    @model_validator(mode="after")
    def _check_consistency(self) -> "SubmitActionRequest":
        if self.kind != "score" and (self.service is not None or self.items):
            raise ValueError(f"kind `{self.kind}` scores nothing; it takes no service and no items")
        if self.kind != "call" and (self.endpoint is not None or self.request is not None):
            raise ValueError(f"kind `{self.kind}` calls nothing; it takes no endpoint and no request")
        if self.kind in ("score", "call"):
            self._check_no_sandbox_fields()
            return self
        if self.kind == "exec":
            self._check_one_program()
        else:
            self._check_no_program()
        if self.environment.id is not None:
            if self.kind == "environment.create":
                raise ValueError("environment.id names one that is there; one that is to be made has none yet")
        elif self.environment.scope == "trajectory" and self.trajectory is None:
            raise ValueError("environment.scope `trajectory` needs a trajectory")
        return self

    def _check_no_program(self) -> None:
        if given := [name for name in PROGRAM_FIELDS if getattr(self, name)]:
            raise ValueError(f"kind `{self.kind}` runs nothing; it takes no {' and no '.join(given)}")
        if self.demand.resources:
            raise ValueError(f"kind `{self.kind}` runs nothing; it takes no demand.resources")
        if self.environment.scope != "trajectory" and self.environment.id is None:
            raise ValueError(
                f"kind `{self.kind}` is about a persistent environment: environment.scope `trajectory`, or an id"
            )
        if self.kind in ("environment.files", "environment.transfer") and self.env:
            raise ValueError(f"kind `{self.kind}` runs nothing; it takes no env")
        if self.kind == "environment.transfer" and (self.files or self.fetch):
            raise ValueError("kind `environment.transfer` takes no files; they come by a request of their own")

    def _check_no_sandbox_fields(self) -> None:
        if self.kind == "call" and (self.endpoint is None or self.request is None):
            raise ValueError("kind `call` needs an endpoint and a request")
        if self.request is not None and self.retries and not (self.idempotent or self.request.is_idempotent):
            raise ValueError(
                f"retries of a {self.request.method} may carry it out twice; say `idempotent` if that is fine"
            )
        if self.kind == "score" and (self.service is None or not self.items):
            raise ValueError("kind `score` needs a service and items")
        if sum(item.characters for item in self.items) > MAX_CHARACTERS:
            raise ValueError(f"the items have more than {MAX_CHARACTERS} characters; use several actions")
        if given := [name for name in SANDBOX_FIELDS if getattr(self, name) != _default_value(name)]:
            raise ValueError(f"kind `{self.kind}` runs no program; it takes no {' and no '.join(given)}")

    def _check_one_program(self) -> None:
        if [self.argv, self.source, self.session].count(None) != 2:
            raise ValueError("give exactly one of argv, source and session")
        if (self.session is None) != (self.command is None):
            raise ValueError("session and command go together")
        if self.session is not None:
            self._check_session()
        if self.argv is not None and not self.argv[0]:
            raise ValueError("argv.0 is empty; it names the program")

    def _check_session(self) -> None:
        if self.cwd is not None or self.env:
            raise ValueError("a session has its own directory and variables; change them by its commands")
        if self.environment.id is None and self.environment.scope != "trajectory":
            raise ValueError("a session lives in a persistent environment: environment.scope `trajectory`, or an id")


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
    files: dict[str, str] = Field(default_factory=dict, description="Fetched files, contents in base64")
    missing_files: list[str] = Field(default_factory=list)
    cpu_s: float = 0.0
    peak_memory_mib: float = 0.0
    leftover_processes: int = Field(default=0, description="Its processes still in the environment, frozen")
    enforcement: dict[str, str] = Field(default_factory=dict, description="What held: enforced, best_effort, absent")
    scores: list[Score] | None = Field(default=None, description="Of kind `score`: one for each item, in their order")
    response: CallResponse | None = Field(
        default=None, description="Of kind `call`: what was answered, where there was an answer"
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
    step: int = Field(description="Between the amounts that it could be given")
    elasticity: dict[str, Any] = Field(description="As it was declared, in amounts")
    resizable: str = "none"


class Action(BaseModel):
    """The current state of an action. A settled action never changes again."""

    id: UUID
    task: str
    trajectory: str | None = None
    kind: str
    environment: UUID | None = Field(default=None, description="The persistent environment it was granted in")
    state: ActionState
    outcome: ActionOutcome | None = None
    reason: str | None = Field(default=None, description="The limit, or the cause of an infra_error")
    message: str | None = None
    grant_no: int = 0
    failures: int = 0
    node: str | None = None
    class_key: str = Field(default="", description="Actions with the same one are learnt from and scheduled together")
    demand: dict[str, int] = Field(default_factory=dict, description="The least it asked for")
    elastic: ElasticDemand | None = Field(default=None, description="Only where it can use more than that")
    gang: UUID | None = Field(default=None, description="The same of all that start together with it")
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

    @property
    def ok(self) -> bool:
        """True if the outcome is `ok`. Raises `NotSettled`."""
        return self._settled_outcome() is ActionOutcome.OK

    @property
    def masked(self) -> bool:
        """True if the outcome says nothing about the program, so that its sample should be masked out of the loss.

        These outcomes are `infra_error`, `cancelled` and `deadline_in_queue`. Raises `NotSettled`.
        """
        return self._settled_outcome() in MASKED_OUTCOMES

    @property
    def stdout(self) -> str:
        """Standard output as text; empty if the program did not run. Raises `NotSettled`."""
        self._settled_outcome()
        return self.result.stdout.text if self.result is not None else ""

    @property
    def stderr(self) -> str:
        """Standard error as text; empty if the program did not run. Raises `NotSettled`."""
        self._settled_outcome()
        return self.result.stderr.text if self.result is not None else ""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; None if it did not run or died by a signal. Raises `NotSettled`."""
        self._settled_outcome()
        return self.result.exit_code if self.result is not None else None

    def _settled_outcome(self) -> ActionOutcome:
        if self.outcome is None:
            raise NotSettled(f"action {self.id} is {self.state}. Wait for it with `wait` or `get(id, wait_s=...)`")
        return self.outcome


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
