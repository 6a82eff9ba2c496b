"""Hints for the leader, and what it is asked."""

from arl_core.fence import Fence
from arl_kit.hops import Hops
from arl_scheduler.estimate_rows import Run
from arl_scheduler.explaining import Explaining
from arl_scheduler.mailbox import Mailbox
from arl_scheduler.planning import Planning
from arl_store.ids import as_read
from arl_wire.internal import AdmittedHint, ExplainAsk, FenceBody, FreedHint, PlanAsk, RunBody, StragglersAsk

__all__ = ["add_hops", "add_questions"]


def add_hops(hops: Hops, mailbox: Mailbox) -> None:
    async def admitted(hint: AdmittedHint) -> None:
        mailbox.admitted(hint.actions)

    async def freed(hint: FreedHint) -> None:
        runs = {_fence(run): Run(run.run_us, run.cpu_us) for run in hint.runs}
        mailbox.freed([*map(_fence, hint.fences), *runs], requeued=map(_fence, hint.requeued), runs=runs)

    hops.add("/internal/admitted", AdmittedHint, admitted)
    hops.add("/internal/freed", FreedHint, freed)


def add_questions(hops: Hops, explaining: Explaining, planning: Planning) -> None:
    hops.add("/internal/explain", ExplainAsk, explaining.explain)
    hops.add("/internal/stragglers", StragglersAsk, explaining.stragglers)
    hops.add("/internal/plan", PlanAsk, planning.plan)


def _fence(body: FenceBody | RunBody) -> Fence:
    return Fence(as_read(body.id), body.grant_no)
