"""Internal routes of admission, for the gateway."""

from arl_admission.service import AdmissionService
from arl_kit.internal_api import InternalApi
from arl_wire.internal.admission import (
    AdmitRequest,
    AdmitResponse,
    CancelActionsRequest,
    DeleteSnapshotRequest,
    EndStepRequest,
    EndTrajectoryRequest,
    InternalChangeNodeRequest,
    InternalChangeProjectRequest,
    InternalChangeQueueRequest,
    RemoveNodeRequest,
    RequestImagesRequest,
)
from arl_wire.internal.reward_services import (
    InternalRegisterServiceRequest,
    RemoveServiceRequest,
    ServiceOperationRequest,
)

__all__ = ["add_internal_routes"]


def add_internal_routes(api: InternalApi, admission: AdmissionService) -> None:
    """Add the routes that the gateway calls."""

    async def admit(request: AdmitRequest) -> AdmitResponse:
        """Admit single actions, or all actions of a gang together."""
        return await (admission.admit_gang if request.gang else admission.admit)(request.items)

    api.add_route("/internal/admit", AdmitRequest, admit)
    api.add_route("/internal/cancel", CancelActionsRequest, admission.cancel)
    api.add_route("/internal/end-trajectory", EndTrajectoryRequest, admission.trajectories.end)
    api.add_route("/internal/end-step", EndStepRequest, admission.trajectories.end_step)
    api.add_route("/internal/delete-snapshot", DeleteSnapshotRequest, admission.delete_snapshot)
    api.add_route("/internal/change-queue", InternalChangeQueueRequest, admission.change_queue)
    api.add_route("/internal/change-node", InternalChangeNodeRequest, admission.nodes.change)
    api.add_route("/internal/remove-node", RemoveNodeRequest, admission.nodes.remove)
    api.add_route("/internal/request-images", RequestImagesRequest, admission.nodes.request_images)
    api.add_route("/internal/change-project", InternalChangeProjectRequest, admission.change_project)
    api.add_route("/internal/register-service", InternalRegisterServiceRequest, admission.reward_services.register)
    api.add_route("/internal/change-service", ServiceOperationRequest, admission.reward_services.change)
    api.add_route("/internal/remove-service", RemoveServiceRequest, admission.reward_services.remove)
