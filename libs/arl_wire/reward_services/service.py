"""Reward services in the form in which clients see them."""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from arl_core.residency.occupancy import ResidencyState
from arl_wire.actions.action import Name
from arl_wire.reward_services.judges import JudgeOptions
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.scores import MAX_CHARACTERS, MAX_ITEMS, Score, ScoreItem, ServiceName
from arl_wire.validation import StrictModel, validate_no_nul, validate_relative_path

__all__ = [
    "HEALTH_NOT_HERE",
    "RegisterRewardServiceRequest",
    "RewardService",
    "RewardServiceListResponse",
    "ScoreRequest",
    "ScoreResponse",
    "ServiceOperation",
    "ServiceOptions",
    "ServiceReplica",
]

HEALTH_NOT_HERE = "not_here"
"""Prefix of the health if a node lacks the service's files or backend."""
TENSOR_PARALLEL_KINDS = ("sequence-classifier", "reranker", "logprobs")
"""Kinds with weights that can be split across devices."""

_Path = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Source = Annotated[_Path, AfterValidator(validate_no_nul), AfterValidator(validate_relative_path)]


class ServiceOptions(StrictModel):
    """The options of a service besides its files."""

    activation: bool | None = Field(
        default=None,
        description="True to return probabilities, false to return raw logits. Absent: the activation of `classifier`",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=128 << 10,
        description="Maximum tokens of an item. A longer one is cut and marked as truncated",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Data type of the weights in memory. Absent: the data type of the files"
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        le=8,
        description="Number of devices of one node that each have a part of the weights and compute every batch"
        " together. Only for kinds that torch computes",
    )
    judge: JudgeOptions | None = Field(
        default=None, description="Prompt and verdicts of a judge. Absent: the judge answers chats and scores nothing"
    )


class RegisterRewardServiceRequest(StrictModel):
    """A model with files, or an engine, on the nodes. It contains no code: safetensors and a configuration."""

    name: ServiceName
    kind: Literal["sequence-classifier", "reranker", "logprobs", "similarity", "relevance", "classifier", "judge"] = (
        Field(
            description="Kind of the service. Sentence encoders: `similarity`, `relevance`, and `classifier` with a"
            " head in `head.safetensors`. Torch models: `sequence-classifier` returns labels or a scalar"
            " reward of a text, a conversation or tokens; `reranker` scores a text for a query; `logprobs`"
            " returns the log-probability of each token by a causal language model. Generating engines:"
            " `judge`"
        )
    )
    source: Source = Field(
        description="Directory in the layout of Hugging Face, relative to the nodes' model directory. For a judge: the"
        " name of the engine on the nodes"
    )
    options: ServiceOptions = ServiceOptions()

    @model_validator(mode="after")
    def _check_options(self) -> "RegisterRewardServiceRequest":
        if self.name in VERIFIERS:
            raise ValueError(f"{self.name} is the name of a built-in verifier: choose another name")
        if self.kind == "logprobs" and self.options.activation is not None:
            raise ValueError("a service of kind `logprobs` has no activation: remove options.activation")
        options = self.options.model_dump(exclude_none=True, exclude_unset=True)
        if self.kind == "judge" and (given := options.keys() - {"judge"}):
            raise ValueError(f"a judge uses the settings of its engine: remove {', '.join(sorted(given))}")
        if self.options.tensor_parallel is not None and self.kind not in TENSOR_PARALLEL_KINDS:
            raise ValueError(
                f"a service of kind `{self.kind}` cannot be split across devices: remove options.tensor_parallel"
            )
        if self.kind != "judge" and self.options.judge is not None:
            raise ValueError(f"options.judge is only for kind `judge`: remove it from a service of kind `{self.kind}`")
        return self


class ServiceOperation(StrEnum):
    """The operations on an existing service."""

    LOAD = "load"
    """Restore the weights to a device now, before the first score."""
    PIN = "pin"
    """Never evict the service for another one once it is resident."""
    UNPIN = "unpin"
    DRAIN = "drain"
    """Finish running actions, queue new ones, then leave the device."""
    RESUME = "resume"


class ServiceReplica(BaseModel):
    """A node's copy of a service."""

    node: str
    available: bool = Field(description="True if the node is alive and accepts new actions")
    state: ResidencyState = Field(description="Current location of its weights")
    device: str
    slots: int = Field(
        description="Maximum actions in flight. 0 if the service is not available on the node; `health` gives the"
        " reason"
    )
    in_flight: int
    batches: int = Field(description="Batches since the node manager started")
    scores: int = Field(description="Items scored since the node manager started")
    health: str = Field(description="`ok`, or the code of the last error, followed by a colon and details")


class RewardService(BaseModel):
    """A model that scores items. Actions of kind `score` name it."""

    name: str
    kind: str = Field(description="Kind of the service; it determines the fields of items and the meaning of scores")
    model: str | None = Field(
        default=None,
        description="Backend of the service: a package, a directory, a function or an engine. Present only for"
        " administrators of project `default`, as are `options.judge` and the details of `health`",
    )
    max_tokens: int | None = Field(
        default=None,
        description="Maximum tokens of a text. A longer one is cut, and its score is marked as truncated. Absent"
        " while no node has the service",
    )
    registered: bool = Field(
        default=False,
        description="True if `POST /v1/reward-services` registered the service; false if a node provides it"
        " without registration",
    )
    pinned: bool = False
    drained: bool = Field(default=False, description="True if the service accepts nothing new until it is resumed")
    options: dict[str, Any] = Field(default_factory=dict)
    available: bool = Field(description="True if a node with the service is alive. Otherwise its actions are queued")
    problem: str | None = Field(
        default=None, description="Why a verifier cannot run on some or all CPU nodes. Absent for other services"
    )
    nodes: list[ServiceReplica]


class RewardServiceListResponse(BaseModel):
    """All reward services, by name."""

    items: list[RewardService]


class ScoreRequest(StrictModel):
    """A synchronous request to score items with a reward service."""

    service: ServiceName
    items: list[ScoreItem] = Field(min_length=1, max_length=MAX_ITEMS)
    task: Name = Field(description="RL workload to which the items belong")
    trajectory: Name | None = Field(default=None, description="Rollout to which the items belong")
    step: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Training step, used in metrics and reports")
    priority: int = Field(
        default=0, ge=-10, le=10, description="Order among the actions of the same task; a higher value goes first"
    )
    within_s: float = Field(
        default=55,
        gt=0,
        le=600,
        allow_inf_nan=False,
        description="Seconds within which the scores are useful. After that the request fails with 503 and the"
        " items are not scored",
    )

    @model_validator(mode="after")
    def _check_size(self) -> "ScoreRequest":
        if sum(item.characters for item in self.items) > MAX_CHARACTERS:
            raise ValueError(f"items must have at most {MAX_CHARACTERS} characters in total: use several requests")
        return self


class ScoreResponse(BaseModel):
    """The scores in the order of the items."""

    action: UUID = Field(description="Action that scored the items; it may also have items of other requests")
    first: int = Field(description="Index of the first item of this request among the items of the action")
    scores: list[Score]
