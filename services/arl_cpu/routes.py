from fastapi import APIRouter, Request

from arl_cpu.manager import Manager
from arl_wire.internal import GrantBatch

__all__ = ["router"]

router = APIRouter(prefix="/internal")


@router.post("/grants", status_code=204)
async def grants(body: GrantBatch, request: Request) -> None:
    """A faster copy of granted rows; the manager's poll finds them too."""
    manager: Manager = request.app.state.manager
    await manager.offer(body.grants, epoch=body.node_epoch)
