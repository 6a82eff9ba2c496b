"""The client of ARL-Tangram.

from arl_tangram import Tangram

with Tangram() as tangram:
    action = tangram.run(task="ai-coding", source="print(6 * 7)")
    print(action.outcome, action.result.stdout.text)
"""

from arl_core.states import ActionOutcome, ActionState
from arl_tangram.client import AsyncTangram, Tangram
from arl_tangram.endpoints import CallOptions, call_action, response_of
from arl_tangram.operations import ActionFailed, BatchRefused, WaitTimeout, expect_ok, fetched_files
from arl_tangram.options import ExecOptions, exec_action
from arl_tangram.rewards import ScoreOptions, score_action, scores_of
from arl_tangram.sessions import AsyncEnvironmentSession, EnvironmentSession
from arl_tangram.streaming import OutputData, OutputEvent
from arl_wire.actions import Action, ActionResult, ActionTimes, OutputStream, SubmitActionRequest
from arl_wire.calls import CallResponse, Endpoint
from arl_wire.environments import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.errors import (
    Conflict,
    DemandImpossible,
    EndpointUnknown,
    Forbidden,
    IdempotencyKeyReused,
    NotFound,
    NotRunning,
    RequirementNotEnforced,
    ServiceUnknown,
    TangramError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    ValidationFailed,
)
from arl_wire.output import OutputEnd, OutputRestart, OutputTruncated
from arl_wire.scores import Score, ScoreItem

__all__ = [
    "Action",
    "ActionFailed",
    "ActionResult",
    "AsyncEnvironmentSession",
    "AsyncTangram",
    "BatchRefused",
    "CallOptions",
    "CallResponse",
    "Conflict",
    "CreateEnvironmentRequest",
    "DemandImpossible",
    "Endpoint",
    "EndpointUnknown",
    "EnvironmentInfo",
    "ExecOptions",
    "Forbidden",
    "IdempotencyKeyReused",
    "NotFound",
    "NotRunning",
    "ActionOutcome",
    "OutputData",
    "OutputEnd",
    "OutputEvent",
    "OutputRestart",
    "OutputStream",
    "OutputTruncated",
    "RequirementNotEnforced",
    "Score",
    "ScoreItem",
    "ScoreOptions",
    "ServiceUnknown",
    "EnvironmentSession",
    "ActionState",
    "SubmitActionRequest",
    "Tangram",
    "TangramError",
    "ActionTimes",
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
