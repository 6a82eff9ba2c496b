"""Routes of projects. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from arl_gateway.admin.projects import ProjectAdmin
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, Admin, AdminWriter
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.action import Name
from arl_wire.admin.queues import ChangeProjectRequest, Project, ProjectListResponse
from arl_wire.errors import NotFound

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"], route_class=OptionalNullRoute)


async def _projects(request: Request) -> ProjectAdmin:
    projects: ProjectAdmin = gateway_deps(request).project_admin
    return projects


ProjectsDep = Annotated[ProjectAdmin, Depends(_projects)]


@router.get(
    "/projects",
    operation_id="list_projects",
    summary="List projects",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_projects(
    caller: Admin,
    projects: ProjectsDep,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ProjectListResponse:
    """List projects with their weights.

    A key of project `default` lists all projects; any other key lists its own project.
    """
    return await projects.list(caller, cursor=cursor, limit=limit)


@router.patch(
    "/projects/{name:path}",
    operation_id="change_project",
    summary="Change a project",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound),
)
async def change_project(name: Name, body: ChangeProjectRequest, caller: AdminWriter, projects: ProjectsDep) -> Project:
    """Change the weight of a project relative to the other projects.

    Requires a key of project `default`. Returns 404 for an unknown project.
    """
    return await projects.change(name, body, caller)
