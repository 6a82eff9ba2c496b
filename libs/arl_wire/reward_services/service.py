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
        description="Whether scores are probabilities and not raw logits; left out, they are those of `classifier`",
    )
    max_tokens: int | None = Field(default=None, ge=1, le=128 << 10, description="An item is cut there, and says so")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Of the weights in memory; as the files have it, where it is left out"
    )
    tensor_parallel: int | None = Field(
        default=None,
        ge=1,
        le=8,
        description="Devices of a node that have a part of the weights each, and compute every batch together; of the"
        " kinds that torch computes",
    )
    judge: JudgeOptions | None = Field(
        default=None, description="What a judge is asked; left out, it answers chats and judges nothing"
    )


class RegisterRewardServiceRequest(StrictModel):
    """A model with files, or an engine, on the nodes. It contains no code: safetensors and a configuration."""

    name: ServiceName
    kind: Literal["sequence-classifier", "reranker", "logprobs", "similarity", "relevance", "classifier", "judge"] = (
        Field(
            description="By a sentence encoder: `similarity`, `relevance`, and `classifier` with a head in"
            " `head.safetensors`. By torch: `sequence-classifier`, labels or a scalar reward of a text, a conversation"
            " or tokens; `reranker`, of a text and a query; `logprobs`, of each token, by a causal language model. By"
            " an engine that generates: `judge`"
        )
    )
    source: Source = Field(
        description="Directory in the layout of Hugging Face, below the one that the nodes have for models; of a judge,"
        " the name that nodes have for its engine"
    )
    options: ServiceOptions = ServiceOptions()

    @model_validator(mode="after")
    def _check_options(self) -> "RegisterRewardServiceRequest":
        if self.name in VERIFIERS:
            raise ValueError(f"{self.name} is the name of a verifier that every deployment has")
        if self.kind == "logprobs" and self.options.activation is not None:
            raise ValueError("a service of kind `logprobs` has no activation")
        options = self.options.model_dump(exclude_none=True, exclude_unset=True)
        if self.kind == "judge" and (given := options.keys() - {"judge"}):
            raise ValueError(f"a judge's engine has its own {', '.join(sorted(given))}")
        if self.options.tensor_parallel is not None and self.kind not in TENSOR_PARALLEL_KINDS:
            raise ValueError(f"a service of kind `{self.kind}` is not split; it takes no options.tensor_parallel")
        if self.kind != "judge" and self.options.judge is not None:
            raise ValueError(f"a service of kind `{self.kind}` is asked nothing; it takes no options.judge")
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
    available: bool = Field(description="The node lives, and takes new actions")
    state: ResidencyState = Field(description="Where its weights are")
    device: str
    slots: int = Field(description="Actions that may be in flight; none where it can't be had here, as `health` says")
    in_flight: int
    batches: int = Field(description="Since the start of its manager")
    scores: int = Field(description="Items scored since then")
    health: str = Field(description="`ok`, or the code of what went wrong, and after a colon what was said of it")


class RewardService(BaseModel):
    """A model that scores items. Actions of kind `score` name it."""

    name: str
    kind: str = Field(description="What its items have to have and its scores mean; see the README")
    model: str | None = Field(
        default=None,
        description="What it is made of: a package, a directory, a function or an engine. Only for administrators of"
        " project `default`, as are `options.judge` and the sentence of a node's `health`",
    )
    max_tokens: int | None = Field(
        default=None, description="A longer text is cut, and its score says so. Absent while no node has it"
    )
    registered: bool = Field(
        default=False, description="By `POST /v1/reward-services`; others come along with their nodes"
    )
    pinned: bool = False
    drained: bool = Field(default=False, description="It takes nothing new until it is resumed")
    options: dict[str, Any] = Field(default_factory=dict)
    available: bool = Field(description="A node with it lives; otherwise actions wait for one")
    nodes: list[ServiceReplica]


class RewardServiceListResponse(BaseModel):
    items: list[RewardService]


class ScoreRequest(StrictModel):
    """A synchronous request to score items with a reward service."""

    service: ServiceName
    items: list[ScoreItem] = Field(min_length=1, max_length=MAX_ITEMS)
    task: Name = Field(description="The RL workload this belongs to")
    trajectory: Name | None = Field(default=None, description="The rollout this belongs to")
    step: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Training step, for figures")
    priority: int = Field(default=0, ge=-10, le=10, description="Higher goes first, among one task's")
    within_s: float = Field(
        default=55, gt=0, le=600, allow_inf_nan=False, description="Of no use later: then it is 503, and not scored"
    )

    @model_validator(mode="after")
    def _check_size(self) -> "ScoreRequest":
        if sum(item.characters for item in self.items) > MAX_CHARACTERS:
            raise ValueError(f"items have more than {MAX_CHARACTERS} characters in all")
        return self


class ScoreResponse(BaseModel):
    """The scores in the order of the items."""

    action: UUID = Field(description="In which they were scored, with those of other calls")
    first: int = Field(description="Which of its items the first one is")
    scores: list[Score]
