"""Hints for the leader."""

from arl_core.fence import Fence
from arl_kit.hops import Hops
from arl_scheduler.rounds import Rounds
from arl_wire.internal import AdmittedHint, FreedHint

__all__ = ["add_hops"]


def add_hops(hops: Hops, rounds: Rounds) -> None:
    async def admitted(hint: AdmittedHint) -> None:
        rounds.admitted(hint.actions)

    async def freed(hint: FreedHint) -> None:
        rounds.freed(
            (Fence(fence.id, fence.grant_no) for fence in hint.fences),
            requeued=(Fence(fence.id, fence.grant_no) for fence in hint.requeued),
        )

    hops.add("/internal/admitted", AdmittedHint, admitted)
    hops.add("/internal/freed", FreedHint, freed)
