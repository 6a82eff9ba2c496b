from fastapi import APIRouter, Request

from arl_admission.service import Admission
from arl_wire.internal import AdmitRequest, AdmitResponse, CancelWish, EndTrajectoryWish, LimitQueue, WishAnswer

__all__ = ["router"]

router = APIRouter(prefix="/internal")


def _admission(request: Request) -> Admission:
    admission: Admission = request.app.state.deps.admission
    return admission


@router.post("/admit")
async def admit(body: AdmitRequest, request: Request) -> AdmitResponse:
    """Insert and answer after the commit; each item is accepted or refused for itself."""
    return await _admission(request).admit(body.items)


@router.post("/cancel")
async def cancel(body: CancelWish, request: Request) -> WishAnswer:
    return await _admission(request).cancel(body)


@router.post("/end-trajectory")
async def end_trajectory(body: EndTrajectoryWish, request: Request) -> WishAnswer:
    return await _admission(request).end_trajectory(body)


@router.post("/limit-queue")
async def limit_queue(body: LimitQueue, request: Request) -> WishAnswer:
    return await _admission(request).limit_queue(body)
