"""Listing and weighting of projects. Admission writes the weights."""

from arl_gateway.admin import queries
from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row
from arl_wire.admin.queues import ChangeProjectRequest, Project, ProjectListResponse
from arl_wire.errors import Forbidden, NotFound
from arl_wire.internal.admission import AffectedRowsResponse, InternalChangeProjectRequest

__all__ = ["ProjectAdmin"]


class ProjectAdmin:
    """Administration of projects. Only keys of the first project see the others and may change their shares."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store = store
        self._peers = peers
        self._admission_url = admission_url

    async def list(self, caller: Caller, *, cursor: int | None, limit: int) -> ProjectListResponse:
        """List the projects that the caller may see, in order of creation."""
        only = None if caller.is_root else caller.project_id
        async with self._store.read() as tx:
            rows = await queries.list_projects(tx, only=only, after=cursor, limit=limit + 1)
        items = [_project_from_row(row) for row in rows[:limit]]
        return ProjectListResponse(items=items, next_cursor=items[-1].id if len(rows) > limit else None)

    async def change(self, name: str, request: ChangeProjectRequest, caller: Caller) -> Project:
        """Change the weight of a project. Raises `NotFound`, and `Forbidden` for keys of other projects."""
        if not caller.is_root:
            raise Forbidden(f"projects can be changed only with a key of project `{ROOT_PROJECT}`")
        wish = InternalChangeProjectRequest(name=name, weight=request.weight)
        content = await self._peers.call(f"{self._admission_url}/internal/change-project", wish, audience="admission")
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            raise NotFound(
                f"project {name!r} does not exist. Its first key creates it: `tangram keys create --project {name}`"
            )
        async with self._store.write() as tx:
            await insert_audit_log(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb="project.change",
                target=f"project:{name}",
                detail=request.model_dump_json(exclude_unset=True),
            )
            row = await queries.project_by_name(tx, name)
        if row is None:
            raise NotFound(f"project {name!r} was removed meanwhile")
        return _project_from_row(row)


def _project_from_row(row: Row) -> Project:
    return Project(id=row.id, name=row.name, weight=row.weight)
