"""Routes of notifications and queries to the leader."""

from arl_core.domain.model import Fence
from arl_kit.internal_api import InternalApi
from arl_scheduler.inquiry.backlog_reporter import BacklogReporter
from arl_scheduler.inquiry.capacity_planner import CapacityPlanner
from arl_scheduler.inquiry.wait_explainer import WaitExplainer
from arl_scheduler.leader.notification_inbox import NotificationInbox
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_store.values import to_driver_uuid
from arl_wire.internal.scheduler import (
    ActionsAdmittedNotification,
    BacklogRequest,
    CapacityPlanRequest,
    ExplainRequest,
    FencePayload,
    FindStragglersRequest,
    ResourcesFreedNotification,
    RunReport,
)

__all__ = ["add_notification_routes", "add_query_routes"]


def add_notification_routes(api: InternalApi, inbox: NotificationInbox) -> None:
    """Add the routes of best-effort notifications from admission and node managers."""

    async def admitted(hint: ActionsAdmittedNotification) -> None:
        """Receive admitted actions."""
        inbox.admitted(hint.actions, ended=hint.ended)

    async def freed(hint: ResourcesFreedNotification) -> None:
        """Receive freed resources."""
        runs = {_to_fence(run): RunDuration(run.run_us, run.cpu_us, run.wall_us) for run in hint.runs}
        inbox.freed([*map(_to_fence, hint.fences), *runs], requeued=map(_to_fence, hint.requeued), runs=runs)

    api.add_route("/internal/admitted", ActionsAdmittedNotification, admitted)
    api.add_route("/internal/freed", ResourcesFreedNotification, freed)


def add_query_routes(
    api: InternalApi, explainer: WaitExplainer, planner: CapacityPlanner, backlog: BacklogReporter
) -> None:
    """Add the routes of explanations, stragglers, capacity plans and the backlog, for the gateway."""
    api.add_route("/internal/explain", ExplainRequest, explainer.explain)
    api.add_route("/internal/stragglers", FindStragglersRequest, explainer.stragglers)
    api.add_route("/internal/plan", CapacityPlanRequest, planner.plan)
    api.add_route("/internal/backlog", BacklogRequest, backlog.report)


def _to_fence(body: FencePayload | RunReport) -> Fence:
    return Fence(to_driver_uuid(body.id), body.grant_no)
