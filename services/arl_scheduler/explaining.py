"""Why a queued action does not run, from the leader's index: for whoever asks, and without any part in rounds."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from arl_core.curves import Width
from arl_core.explain import Explanation, explain
from arl_core.plan import Policy
from arl_core.rules import Rule
from arl_scheduler.homes import Standing
from arl_scheduler.rounds import Rounds
from arl_wire.errors import NotFound, Unavailable
from arl_wire.explain import Ahead, ExpectedRun, Lack, WaitExplanation
from arl_wire.internal import ExplainAnswer, ExplainAsk, StragglerBody, StragglersAnswer, StragglersAsk

__all__ = ["Explaining"]


class Explaining:
    def __init__(self, rounds: Rounds, policy: Policy) -> None:
        self._rounds = rounds
        self._policy = policy
        self._one = asyncio.Lock()

    async def explain(self, ask: ExplainAsk) -> ExplainAnswer:
        """Raises `NotFound` where no queued action has this id, `Unavailable` where another scheduler leads."""
        async with self._one:
            # However many ask, rounds and requests get their turn after each.
            await asyncio.sleep(0)
            return self._explain(ask.id)

    async def stragglers(self, ask: StragglersAsk) -> StragglersAnswer:
        """As of the last poll. Raises `Unavailable` where another scheduler leads."""
        if self._rounds.view() is None:
            raise _not_leading()
        straggling = self._rounds.straggling
        found = straggling.longest(ask.limit) if ask.only is None else straggling.of(ask.only)
        return StragglersAnswer(
            stragglers=[
                StragglerBody(
                    id=each.fence.action_id,
                    amounts=dict(each.amounts),
                    elapsed_s=round(each.elapsed_s, 3),
                    limit_s=round(each.limit_s, 3),
                )
                for each in found
            ]
        )

    def _explain(self, id: UUID) -> ExplainAnswer:
        view = self._rounds.view()
        if view is None:
            raise _not_leading()
        index, snapshot = view
        standing = index.standing(id)
        if standing is None:
            raise NotFound(f"the scheduler knows no queued action {id}")
        found = explain(snapshot, standing.action, self._policy, held_back=_held_back(standing))
        return ExplainAnswer(node=found.node, wait=_answer_of(found, standing))


def _not_leading() -> Unavailable:
    return Unavailable("this scheduler does not lead, or has begun just now; try again", retry_after_s=1)


def _held_back(standing: Standing) -> Rule | None:
    if standing.paused:
        return Rule.QUEUE_PAUSED
    if standing.action.gang is not None and not standing.action.together:
        return Rule.WAITS_FOR_GANG
    return None if standing.is_next else Rule.ENVIRONMENT_BUSY


def _answer_of(found: Explanation, standing: Standing) -> WaitExplanation:
    ahead = found.ahead
    return WaitExplanation(
        rule=found.rule,
        lacks=[
            Lack(resource=each.resource, needed=each.needed, free=each.free, capacity=each.capacity)
            for each in found.lacks
        ],
        unenforced=sorted(found.unenforced),
        ahead=Ahead(
            priority=ahead.priority, in_task=ahead.in_task, other_tasks=ahead.other_tasks, at_least=ahead.at_least
        )
        if ahead is not None
        else None,
        ahead_in_environment=standing.before if standing.action.environment is not None else None,
        counts_from=datetime.fromtimestamp(found.counts_from, UTC),
        lead_s=round(found.lead_s, 3),
        debt_s=round(found.debt_s, 3),
        part=round(found.part, 6),
        resource=found.resource,
        narrowest=_run_of(found.narrowest),
        widest=_run_of(found.widest),
        basis=found.basis,
        runs=found.runs,
        backlog_s=round(found.backlog_s, 3) if found.backlog_s is not None else None,
    )


def _run_of(width: Width) -> ExpectedRun:
    return ExpectedRun(amount=width.amount, seconds=round(width.seconds, 6))
