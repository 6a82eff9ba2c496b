"""All names that user code imports from `arl_tangram`."""

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.async_client import AsyncTangram
from arl_tangram.batches import ActionInput
from arl_tangram.client import Tangram
from arl_tangram.environment_handles import (
    AsyncEnvironment,
    AsyncEnvironmentFiles,
    Environment,
    EnvironmentFiles,
    PendingEnvironment,
)
from arl_tangram.operations import ActionFailed, BatchRefused, WaitTimeout, expect_ok, fetched_files
from arl_tangram.options import EnvironmentOptions, ExecOptions, ForkOptions, exec_action
from arl_tangram.resources.endpoints import CallOptions, call_action, response_of
from arl_tangram.resources.output_streams import OutputData, OutputEvent
from arl_tangram.resources.queues import CapacityOptions
from arl_tangram.resources.reward_services import ScoreInput, ScoreOptions, score_action, scores_of
from arl_tangram.sessions import AsyncEnvironmentSession, EnvironmentSession
from arl_wire.actions.action import Action, ActionResult, ActionTimes, OutputStream, SubmitActionRequest
from arl_wire.actions.explanations import ActionExplanation, StepPosition, StragglerInfo, WaitExplanation
from arl_wire.actions.output_events import OutputEnd, OutputRestart, OutputTruncated
from arl_wire.actions.traces import ActionTrace, TraceSpan
from arl_wire.admin.audit_log import AuditLogEntry
from arl_wire.admin.capacity import BacklogResponse, CapacityForecast, CapacityPlan, NodeKindBacklog
from arl_wire.admin.images import ImageListResponse, ImageRequestsResponse, NodeImage
from arl_wire.admin.keys import ApiKey, CreateKeyResponse
from arl_wire.admin.nodes import NodeInfo, NodeListResponse
from arl_wire.admin.pools import PoolInfo, PoolListResponse, PublishPoolRequest
from arl_wire.admin.queues import Project, Queue, QueueQuota
from arl_wire.calls import CallResponse, Endpoint
from arl_wire.environments.environment import (
    EnvironmentInfo,
    EnvironmentState,
    SignedPort,
    SignPortRequest,
    SnapshotInfo,
)
from arl_wire.environments.files import FileEntry, UploadArchiveResponse
from arl_wire.environments.forks import ForkEnvironmentRequest, ForkEnvironmentResponse
from arl_wire.environments.images import ImagePullProgress
from arl_wire.environments.network import NetworkAllowList, NetworkRefusal, NetworkUsage, UpdateEnvironmentRequest
from arl_wire.errors import (
    BadRequest,
    Conflict,
    DatabaseDiskFull,
    DemandImpossible,
    EndpointNotFound,
    FieldError,
    Forbidden,
    GangRefused,
    GatewayTimeout,
    IdempotencyKeyReused,
    InputClosed,
    InputFull,
    Internal,
    NotFound,
    NothingListens,
    NotRunning,
    NotScored,
    NotSettled,
    QueueFull,
    RateLimited,
    RequirementNotEnforced,
    RewardServiceNotFound,
    ServerFailed,
    TangramError,
    TemplateNotFound,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    ValidationFailed,
)
from arl_wire.reward_services.service import RewardService, ServiceOperation, ServiceOptions
from arl_wire.scores import ItemError, PromptMessage, Score, ScoreItem
from arl_wire.steps import ResourceSaving, StepReport, StepTrajectoryStatus, TrajectoryTimes

__all__ = [
    "Action",
    "ActionExplanation",
    "ActionFailed",
    "ActionInput",
    "ActionOutcome",
    "ActionResult",
    "ActionState",
    "ActionTimes",
    "ActionTrace",
    "ApiKey",
    "AsyncEnvironment",
    "AsyncEnvironmentFiles",
    "AsyncEnvironmentSession",
    "AsyncTangram",
    "AuditLogEntry",
    "BacklogResponse",
    "BadRequest",
    "BatchRefused",
    "CallOptions",
    "CallResponse",
    "CapacityForecast",
    "CapacityOptions",
    "CapacityPlan",
    "Conflict",
    "CreateKeyResponse",
    "DatabaseDiskFull",
    "DemandImpossible",
    "Endpoint",
    "EndpointNotFound",
    "Environment",
    "EnvironmentFiles",
    "EnvironmentInfo",
    "EnvironmentOptions",
    "EnvironmentSession",
    "EnvironmentState",
    "ExecOptions",
    "FieldError",
    "FileEntry",
    "Forbidden",
    "ForkEnvironmentRequest",
    "ForkEnvironmentResponse",
    "ForkOptions",
    "GangRefused",
    "GatewayTimeout",
    "IdempotencyKeyReused",
    "ImageListResponse",
    "ImagePullProgress",
    "ImageRequestsResponse",
    "InputClosed",
    "InputFull",
    "Internal",
    "ItemError",
    "NetworkAllowList",
    "NetworkRefusal",
    "NetworkUsage",
    "NodeImage",
    "NodeInfo",
    "NodeKindBacklog",
    "NodeListResponse",
    "NotFound",
    "NotRunning",
    "NotScored",
    "NotSettled",
    "NothingListens",
    "OutputData",
    "OutputEnd",
    "OutputEvent",
    "OutputRestart",
    "OutputStream",
    "OutputTruncated",
    "PendingEnvironment",
    "PoolInfo",
    "PoolListResponse",
    "Project",
    "PromptMessage",
    "PublishPoolRequest",
    "Queue",
    "QueueFull",
    "QueueQuota",
    "RateLimited",
    "RequirementNotEnforced",
    "ResourceSaving",
    "RewardService",
    "RewardServiceNotFound",
    "Score",
    "ScoreInput",
    "ScoreItem",
    "ScoreOptions",
    "ServerFailed",
    "ServiceOperation",
    "ServiceOptions",
    "SignPortRequest",
    "SignedPort",
    "SnapshotInfo",
    "StepPosition",
    "StepReport",
    "StepTrajectoryStatus",
    "StragglerInfo",
    "SubmitActionRequest",
    "Tangram",
    "TangramError",
    "TemplateNotFound",
    "TooLarge",
    "TooManyRequests",
    "TraceSpan",
    "TrajectoryTimes",
    "Unauthenticated",
    "Unavailable",
    "UpdateEnvironmentRequest",
    "UploadArchiveResponse",
    "ValidationFailed",
    "WaitExplanation",
    "WaitTimeout",
    "call_action",
    "exec_action",
    "expect_ok",
    "fetched_files",
    "response_of",
    "score_action",
    "scores_of",
]
