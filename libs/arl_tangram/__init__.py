"""The client of ARL-Tangram.

from arl_tangram import Tangram

with Tangram() as tangram:
    action = tangram.run(task="ai-coding", source="print(6 * 7)")
    print(action.outcome, action.result.stdout.text)
"""

from arl_core.states import Outcome, State
from arl_tangram.client import AsyncTangram, Tangram
from arl_tangram.endpoints import CallOptions, call_action, response_of
from arl_tangram.operations import ActionFailed, BatchRefused, WaitTimeout, expect_ok, fetched_files
from arl_tangram.options import ExecOptions, exec_action
from arl_tangram.rewards import ScoreOptions, score_action, scores_of
from arl_tangram.sessions import AsyncSession, Session
from arl_tangram.streaming import Output, OutputEvent
from arl_wire.actions import Action, ActionResult, OutputStream, SubmitAction, Times
from arl_wire.calls import CallResponse, Endpoint
from arl_wire.environments import CreateEnvironment, Environment
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
    "AsyncSession",
    "AsyncTangram",
    "BatchRefused",
    "CallOptions",
    "CallResponse",
    "Conflict",
    "CreateEnvironment",
    "DemandImpossible",
    "Endpoint",
    "EndpointUnknown",
    "Environment",
    "ExecOptions",
    "Forbidden",
    "IdempotencyKeyReused",
    "NotFound",
    "NotRunning",
    "Outcome",
    "Output",
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
    "Session",
    "State",
    "SubmitAction",
    "Tangram",
    "TangramError",
    "Times",
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
