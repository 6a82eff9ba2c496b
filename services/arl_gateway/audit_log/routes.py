"""Routes of the audit log. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from arl_gateway.audit_log.service import AuditLogReader
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Admin
from arl_kit.app import error_responses
from arl_wire.actions.action import Name
from arl_wire.admin.audit_log import AuditLogResponse, AuditVerb

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"])


async def _audit_log(request: Request) -> AuditLogReader:
    audit_log: AuditLogReader = gateway_deps(request).audit_log
    return audit_log


@router.get(
    "/audit-log",
    operation_id="list_audit_log",
    summary="List audit log entries",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_audit_log(
    caller: Admin,
    audit_log: Annotated[AuditLogReader, Depends(_audit_log)],
    verb: Annotated[
        AuditVerb | None, Query(description="Return only changes by this operation, such as `queue.change`")
    ] = None,
    project: Annotated[Name | None, Query(description="Return only changes of this project")] = None,
    before: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Return only entries with a smaller id")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditLogResponse:
    """List changes by administrators, newest first.

    A key of project `default` reads the changes of all projects; any other key reads those of its own project.
    """
    return await audit_log.list(caller, project=project, verb=verb, before=before, limit=limit)
