"""What the clients do for administrators: keys, queues, projects and nodes."""

from urllib.parse import quote

from arl_tangram.operations import Call, Operation, all_pages, answered
from arl_wire.keys import CreatedKey, CreateKey, Key, KeyList
from arl_wire.nodes import ChangeNode, Node, NodeList
from arl_wire.plans import CapacityPlan, PlanQuestion
from arl_wire.projects import ChangeProject, Project, ProjectList
from arl_wire.queues import ChangeQueue, Queue, QueueList
from arl_wire.stragglers import Straggler, StragglerList

__all__ = [
    "change_node",
    "change_project",
    "change_queue",
    "create_key",
    "list_keys",
    "list_projects",
    "list_queues",
    "nodes",
    "plan",
    "remove_node",
    "revoke_key",
    "stragglers",
]


def nodes(*, patience_s: float) -> Operation[NodeList]:
    call = Call(method="GET", path="/v1/admin/nodes")
    return NodeList.model_validate_json((yield from answered(call, patience_s)))


def create_key(wanted: CreateKey) -> Operation[CreatedKey]:
    """Sent once: a second try could not show the key that the first one made."""
    call = Call(method="POST", path="/v1/admin/keys", body=wanted)
    return CreatedKey.model_validate_json((yield from answered(call, 0.0)))


def list_keys(*, patience_s: float) -> Operation[list[Key]]:
    """Newest first, all pages."""
    return (yield from all_pages("/v1/admin/keys", {}, KeyList, patience_s))


def revoke_key(id: int, *, patience_s: float) -> Operation[Key]:
    call = Call(method="DELETE", path=f"/v1/admin/keys/{id}")
    return Key.model_validate_json((yield from answered(call, patience_s)))


def list_queues(*, patience_s: float) -> Operation[list[Queue]]:
    """In order of their making, all pages."""
    return (yield from all_pages("/v1/admin/queues", {}, QueueList, patience_s))


def change_queue(task: str, wanted: ChangeQueue, *, patience_s: float) -> Operation[Queue]:
    call = Call(method="PATCH", path=f"/v1/admin/queues/{quote(task, safe='')}", body=wanted, send_null=True)
    return Queue.model_validate_json((yield from answered(call, patience_s)))


def list_projects(*, patience_s: float) -> Operation[list[Project]]:
    """In order of their making, all pages."""
    return (yield from all_pages("/v1/admin/projects", {}, ProjectList, patience_s))


def change_project(name: str, wanted: ChangeProject, *, patience_s: float) -> Operation[Project]:
    call = Call(method="PATCH", path=f"/v1/admin/projects/{quote(name, safe='')}", body=wanted)
    return Project.model_validate_json((yield from answered(call, patience_s)))


def change_node(name: str, wanted: ChangeNode, *, patience_s: float) -> Operation[Node]:
    call = Call(method="PATCH", path=f"/v1/admin/nodes/{quote(name, safe='')}", body=wanted)
    return Node.model_validate_json((yield from answered(call, patience_s)))


def remove_node(name: str, *, patience_s: float) -> Operation[None]:
    yield from answered(Call(method="DELETE", path=f"/v1/admin/nodes/{quote(name, safe='')}"), patience_s)


def plan(question: PlanQuestion, *, patience_s: float) -> Operation[CapacityPlan]:
    query = question.model_dump(exclude_defaults=True)
    call = Call(method="GET", path="/v1/admin/plan", query=query)
    return CapacityPlan.model_validate_json((yield from answered(call, patience_s)))


def stragglers(*, patience_s: float) -> Operation[list[Straggler]]:
    call = Call(method="GET", path="/v1/admin/stragglers")
    return StragglerList.model_validate_json((yield from answered(call, patience_s))).items
