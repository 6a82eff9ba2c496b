"""The client of ARL-Tangram.

from arl_tangram import Tangram

with Tangram() as tangram:
    action = tangram.run(task="ai-coding", source="print(6 * 7)")
    print(action.outcome, action.result.stdout.text)
"""

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.client import AsyncTangram, Tangram
from arl_tangram.operations import ActionFailed, BatchRefused, WaitTimeout, expect_ok, fetched_files
from arl_tangram.options import ExecOptions, exec_action
from arl_tangram.resources.endpoints import CallOptions, call_action, response_of
from arl_tangram.resources.output_streams import OutputData, OutputEvent
from arl_tangram.resources.reward_services import ScoreOptions, score_action, scores_of
from arl_tangram.sessions import AsyncEnvironmentSession, EnvironmentSession
from arl_wire.actions.action import Action, ActionResult, ActionTimes, OutputStream, SubmitActionRequest
from arl_wire.actions.output_events import OutputEnd, OutputRestart, OutputTruncated
from arl_wire.calls import CallResponse, Endpoint
from arl_wire.environments.environment import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.errors import (
    Conflict,
    DemandImpossible,
    EndpointNotFound,
    Forbidden,
    IdempotencyKeyReused,
    NotFound,
    NotRunning,
    RequirementNotEnforced,
    RewardServiceNotFound,
    TangramError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    ValidationFailed,
)
from arl_wire.scores import Score, ScoreItem

__all__ = [
    "Action",
    "ActionFailed",
    "ActionOutcome",
    "ActionResult",
    "ActionState",
    "ActionTimes",
    "AsyncEnvironmentSession",
    "AsyncTangram",
    "BatchRefused",
    "CallOptions",
    "CallResponse",
    "Conflict",
    "CreateEnvironmentRequest",
    "DemandImpossible",
    "Endpoint",
    "EndpointNotFound",
    "EnvironmentInfo",
    "EnvironmentSession",
    "ExecOptions",
    "Forbidden",
    "IdempotencyKeyReused",
    "NotFound",
    "NotRunning",
    "OutputData",
    "OutputEnd",
    "OutputEvent",
    "OutputRestart",
    "OutputStream",
    "OutputTruncated",
    "RequirementNotEnforced",
    "RewardServiceNotFound",
    "Score",
    "ScoreItem",
    "ScoreOptions",
    "SubmitActionRequest",
    "Tangram",
    "TangramError",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "ValidationFailed",
    "WaitTimeout",
    "call_action",
    "exec_action",
    "expect_ok",
    "fetched_files",
    "response_of",
    "score_action",
    "scores_of",
]
