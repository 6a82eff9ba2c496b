from fastapi import APIRouter, Request

from arl_core.fence import Fence
from arl_scheduler.rounds import Rounds
from arl_wire.internal import AdmittedHint, FreedHint

__all__ = ["router"]

router = APIRouter(prefix="/internal")


@router.post("/admitted", status_code=204)
async def admitted(body: AdmittedHint, request: Request) -> None:
    """New rows, or without any: a wish was recorded."""
    rounds: Rounds = request.app.state.rounds
    rounds.admitted(body.actions)


@router.post("/freed", status_code=204)
async def freed(body: FreedHint, request: Request) -> None:
    rounds: Rounds = request.app.state.rounds
    rounds.freed(
        (Fence(fence.id, fence.grant_no) for fence in body.fences),
        requeued=(Fence(fence.id, fence.grant_no) for fence in body.requeued),
    )
