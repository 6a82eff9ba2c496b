"""What the gateway asks of admission."""

from arl_admission.service import Admission
from arl_kit.hops import Hops
from arl_wire.internal import (
    AdmitRequest,
    AdmitResponse,
    CancelWish,
    ChangeProjectWish,
    ChangeQueueWish,
    ChangeServiceWish,
    DeleteSnapshotWish,
    EndTrajectoryWish,
    RegisterServiceWish,
    RemoveServiceWish,
)
from arl_wire.node_wishes import ChangeNodeWish, RemoveNodeWish

__all__ = ["add_hops"]


def add_hops(hops: Hops, admission: Admission) -> None:
    async def admit(request: AdmitRequest) -> AdmitResponse:
        return await (admission.admit_gang if request.gang else admission.admit)(request.items)

    hops.add("/internal/admit", AdmitRequest, admit)
    hops.add("/internal/cancel", CancelWish, admission.cancel)
    hops.add("/internal/end-trajectory", EndTrajectoryWish, admission.end_trajectory)
    hops.add("/internal/delete-snapshot", DeleteSnapshotWish, admission.delete_snapshot)
    hops.add("/internal/change-queue", ChangeQueueWish, admission.change_queue)
    hops.add("/internal/change-node", ChangeNodeWish, admission.nodes.change)
    hops.add("/internal/remove-node", RemoveNodeWish, admission.nodes.remove)
    hops.add("/internal/change-project", ChangeProjectWish, admission.change_project)
    hops.add("/internal/register-service", RegisterServiceWish, admission.services.register)
    hops.add("/internal/change-service", ChangeServiceWish, admission.services.change)
    hops.add("/internal/remove-service", RemoveServiceWish, admission.services.remove)
