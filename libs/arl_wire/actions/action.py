"""Actions in the form in which clients submit and see them."""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from arl_core.domain.states import MASKED_OUTCOMES, ActionOutcome, ActionState
from arl_wire.actions.demand import MAX_MIB, Cpu, CpuRange, DemandSpec, EnvironmentSelector, TemplateName
from arl_wire.actions.elasticity import AmdahlElasticity, NoElasticity, TableElasticity
from arl_wire.actions.results import ActionResult, ActionTimes, ElasticDemand
from arl_wire.actions.trajectory_hints import (
    TRAJECTORY_HINTS,
    ExpectedTurns,
    GroupName,
    Progress,
    PromptKey,
    require_trajectory,
)
from arl_wire.calls import CallRequest, EndpointName
from arl_wire.environments.images import ImagePullProgress
from arl_wire.environments.network import ACTION_NETWORK_DESCRIPTION, NetworkSetting
from arl_wire.errors import NotSettled
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, ScoreItem, ServiceName
from arl_wire.validation import (
    Base64,
    OutputStream,
    StrictModel,
    UserName,
    validate_argument,
    validate_no_nul,
    validate_relative_path,
)

__all__ = [
    "HOST_TEMPLATE",
    "MAX_MIB",
    "Action",
    "ActionListResponse",
    "ActionResult",
    "ActionTimes",
    "AmdahlElasticity",
    "Cpu",
    "CpuRange",
    "DemandSpec",
    "ElasticDemand",
    "EnvironmentSelector",
    "NoElasticity",
    "OutputStream",
    "SubmitActionRequest",
    "TableElasticity",
    "TemplateName",
]

HOST_TEMPLATE = "host"
"""Name of the template that every node has."""
MAX_FILES = 1000
MAX_COMMAND_CHARACTERS = 2 << 20
MAX_STDIN_CHARACTERS = 32 << 20


Text = Annotated[str, AfterValidator(validate_no_nul)]
Argument = Annotated[Text, AfterValidator(validate_argument)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", min_length=1, max_length=128)]
SessionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
ProfileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=64)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=64)]
LabelValue = Annotated[Text, StringConstraints(max_length=256)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
RelativePath = Annotated[Text, StringConstraints(min_length=1, max_length=1024), AfterValidator(validate_relative_path)]

PROGRAM_FIELDS = ("argv", "source", "session", "command", "cwd", "stdin", "stdin_open")
SANDBOX_FIELDS = (
    *PROGRAM_FIELDS, "user", "env", "network", "files", "fetch", "environment", "demand", "elasticity", "require",
    "wall_timeout_s",
)  # fmt: skip


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
    step: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Training step. It ends with the last of its trajectories"
    )
    prompt: PromptKey | None = None
    group: GroupName | None = None
    expected_turns: ExpectedTurns | None = None
    progress: Progress | None = None
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
    stdin: Text = Field(
        default="",
        max_length=MAX_STDIN_CHARACTERS,
        description="Standard input. Larger inputs belong into files of an environment",
    )
    stdin_open: bool = Field(
        default=False, description="True to keep standard input open, so that `POST /v1/actions/{id}/input` sends more"
    )
    env: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    cwd: RelativePath | None = Field(default=None, description="Start directory, relative to the working directory")
    user: UserName | None = Field(
        default=None,
        description="User of the program and owner of `files`: a name of `/etc/passwd` inside or a uid, optionally with"
        " `:` and a group. `root` is root of the environment only. Absent: the image's user; for `host`, uid 1000",
    )
    network: NetworkSetting | None = Field(default=None, description=ACTION_NETWORK_DESCRIPTION)
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
        description="Maximum run time in seconds, from the start of the program. For an action with shared cores, the"
        " time in which it waits for a core does not count",
    )
    wall_timeout_s: float | None = Field(
        default=None,
        ge=1e-6,
        le=86400,
        allow_inf_nan=False,
        description="Maximum real time in seconds, from the start of the program. Absent: only `timeout_s` applies",
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
    endpoint: EndpointName | None = Field(default=None, description="Endpoint of a `call`. See `/v1/endpoints`")
    request: CallRequest | None = Field(default=None, description="HTTP request to `endpoint`; only for kind `call`")
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

    _check_hints = field_validator(*TRAJECTORY_HINTS)(require_trajectory)

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
        fields = PROGRAM_FIELDS if self.kind == "environment.files" else (*PROGRAM_FIELDS, "user")
        if given := [name for name in fields if getattr(self, name)]:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove {' and '.join(given)}")
        if self.demand.resources:
            raise ValueError(f"kind `{self.kind}` does not run a program: remove demand.resources")
        if self.environment.scope != "trajectory" and self.environment.id is None:
            raise ValueError(
                f"kind `{self.kind}` needs a persistent environment: set environment.scope to `trajectory`, or give an"
                " environment.id"
            )
        if self.kind != "environment.create" and (
            given := [name for name in ("env", "network") if getattr(self, name)]
        ):
            raise ValueError(f"kind `{self.kind}` does not run a program: remove {' and '.join(given)}")
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
        default=None, description="Limit that was exceeded, such as `memory` or `timeout_s`, or cause of `infra_error`"
    )
    message: str | None = None
    grant_no: int = 0
    failures: int = 0
    node: str | None = None
    class_key: str = Field(
        default="", description="Key of the class of similar actions. Duration estimates and scheduling use the class"
    )
    demand: dict[str, int] = Field(default_factory=dict, description="Minimum amounts of the demand")
    elastic: ElasticDemand | None = Field(default=None, description="Elastic part of the demand. Absent if it is fixed")
    priority: int = Field(default=0, description="Order among the actions of the same task; a higher value goes first")
    gang: UUID | None = Field(default=None, description="Id that all actions of the same gang have")
    allocation: dict[str, int] | None = None
    critical: bool = Field(
        default=False,
        description="True if its trajectory was expected to end its step last when the action was granted. It then went"
        " past the queue of its task, with a greater share of the cores",
    )
    cancel_requested: bool = False
    created_at: datetime
    deadline_at: datetime | None = None
    granted_at: datetime | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    times: ActionTimes = ActionTimes()
    labels: dict[str, str] = Field(default_factory=dict)
    image: ImagePullProgress | None = Field(
        default=None, description="Pull of its image, while the action waits for it"
    )
    result: ActionResult | None = None

    @property
    def ok(self) -> bool:
        """True if the outcome is `ok`. Raises `NotSettled`."""
        return self._settled_outcome() is ActionOutcome.OK

    @property
    def masked(self) -> bool:
        """True for `infra_error`, `cancelled` and `deadline_in_queue`: mask the sample. Raises `NotSettled`."""
        return self._settled_outcome() in MASKED_OUTCOMES

    @property
    def stdout(self) -> str:
        """Standard output as text; empty without a result, as of `list`. Raises `NotSettled`."""
        self._settled_outcome()
        return self.result.stdout.text if self.result is not None else ""

    @property
    def stderr(self) -> str:
        """Standard error as text; empty without a result, as of `list`. Raises `NotSettled`."""
        self._settled_outcome()
        return self.result.stderr.text if self.result is not None else ""

    @property
    def exit_code(self) -> int | None:
        """Exit code; None after a signal and without a result, as of `list`. Raises `NotSettled`."""
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
