"""Explanations of queued actions by the scheduler, and of other actions from their rows."""

from uuid import UUID

from arl_core.domain.states import ActionState
from arl_gateway.actions.service import ActionService
from arl_gateway.http.auth import Caller
from arl_gateway.nodes import queries as node_queries
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_wire.actions.action import Action
from arl_wire.actions.explanations import ActionExplanation, StragglerStatus, WaitExplanation
from arl_wire.errors import NotFound, Unavailable
from arl_wire.internal.scheduler import ExplainRequest, ExplainResponse, FindStragglersRequest, FindStragglersResponse

__all__ = ["ExplanationService"]


class ExplanationService:
    """Explanations of actions, for clients."""

    def __init__(
        self, store: PostgresStore, actions: ActionService, peers: ServiceClient, *, scheduler_url: str
    ) -> None:
        self._store = store
        self._actions = actions
        self._peers = peers
        self._scheduler_url = scheduler_url

    async def get(self, id: UUID, caller: Caller) -> ActionExplanation:
        """Explain an action of the caller's project.

        A queued action needs the scheduler. For a running action it is asked only whether the action is a straggler.
        """
        action = await self._actions.get(id, caller)
        if action.state is ActionState.RUNNING:
            return _build_explanation(action, straggler=await self._straggler_info(id))
        if action.state is not ActionState.QUEUED:
            return _build_explanation(action)
        wait = await self._explain_wait(id)
        if wait is not None:
            return _build_explanation(action, wait)
        action = await self._actions.get(id, caller)
        if action.state is ActionState.QUEUED:
            raise Unavailable("the scheduler has not received this action yet; try again", retry_after_s=1)
        return _build_explanation(action)

    async def _explain_wait(self, id: UUID) -> WaitExplanation | None:
        """Return None if the scheduler does not know the action or the action is not queued."""
        try:
            content = await self._peers.call(
                f"{self._scheduler_url}/internal/explain", ExplainRequest(id=id), audience="scheduler"
            )
        except NotFound:
            return None
        answer = ExplainResponse.model_validate_json(content)
        if answer.node is None:
            return answer.wait
        async with self._store.read() as tx:
            return answer.wait.model_copy(update={"node": await node_queries.node_name(tx, answer.node)})

    async def _straggler_info(self, id: UUID) -> StragglerStatus | None:
        """Return None if the action does not straggle or the scheduler is unavailable."""
        try:
            content = await self._peers.call(
                f"{self._scheduler_url}/internal/stragglers",
                FindStragglersRequest(limit=1, only=id),
                audience="scheduler",
            )
        except Unavailable:
            return None
        found = FindStragglersResponse.model_validate_json(content).stragglers
        return StragglerStatus(elapsed_s=found[0].elapsed_s, limit_s=found[0].limit_s) if found else None


def _build_explanation(
    action: Action, wait: WaitExplanation | None = None, straggler: StragglerStatus | None = None
) -> ActionExplanation:
    return ActionExplanation(
        id=action.id,
        state=action.state,
        outcome=action.outcome,
        reason=action.reason,
        node=action.node,
        allocation=action.allocation,
        created_at=action.created_at,
        granted_at=action.granted_at,
        started_at=action.started_at,
        settled_at=action.settled_at,
        times=action.times,
        critical=action.critical,
        wait=wait,
        straggler=straggler,
    )
