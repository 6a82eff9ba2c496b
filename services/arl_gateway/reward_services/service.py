"""Reward services, from the rows of the nodes and of the registry. Admission writes the registry."""

import json
from collections import defaultdict
from collections.abc import Sequence

from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_gateway.reward_services.queries import count_cpu_nodes, desired_services, services_by_node
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, Row
from arl_wire.errors import Conflict, FieldError, Forbidden, NotFound
from arl_wire.internal.admission import AffectedRowsResponse
from arl_wire.internal.reward_services import (
    InternalRegisterServiceRequest,
    RemoveServiceRequest,
    RemoveServiceResponse,
    ServiceOperationRequest,
)
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.reward_services.service import (
    HEALTH_NOT_HERE,
    RegisterRewardServiceRequest,
    RewardService,
    RewardServiceListResponse,
    ServiceOperation,
    ServiceReplica,
)

__all__ = ["RewardServiceAdmin"]


class RewardServiceAdmin:
    """Listing and administration of reward services."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, admission_url: str) -> None:
        self._store, self._peers, self._admission_url = store, peers, admission_url

    async def list(self, caller: Caller) -> RewardServiceListResponse:
        """List services, with the details that the caller's project may see."""
        return RewardServiceListResponse(items=[_redact_for(caller, each) for each in await self.list_all()])

    async def list_all(self) -> Sequence[RewardService]:
        """List services by name, with all details."""
        async with self._store.read() as tx:
            found = _merge_services(await services_by_node(tx), await desired_services(tx))
            verifiers = _verifier_services(await count_cpu_nodes(tx))
        return sorted([*found, *verifiers], key=lambda each: each.name)

    async def get(self, name: str, caller: Caller) -> RewardService:
        """Return a service, with the details that the caller's project may see. Raises `NotFound`."""
        async with self._store.read() as tx:
            found = _merge_services(await services_by_node(tx, name=name), await desired_services(tx, name=name))
            if name in VERIFIERS:
                found = [each for each in _verifier_services(await count_cpu_nodes(tx)) if each.name == name]
        if not found:
            raise _service_not_found(name)
        return _redact_for(caller, found[0])

    async def register(self, request: RegisterRewardServiceRequest, caller: Caller) -> RewardService:
        """Register a service. Raises `Conflict` if the name is taken."""
        _require_root_project(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/register-service",
            InternalRegisterServiceRequest(service=request),
            audience="admission",
        )
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            message = f"reward service {request.name!r} already exists: unregister it first, or choose another name"
            raise Conflict(message, errors=[FieldError(field="name", message=message)])
        await self._write_audit_log(
            caller, "reward_service.register", request.name, request.model_dump_json(exclude_none=True)
        )
        return await self.get(request.name, caller)

    async def change(self, name: str, verb: ServiceOperation, caller: Caller) -> RewardService:
        """Change the operation of a service. Raises `NotFound`."""
        _require_root_project(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/change-service",
            ServiceOperationRequest(name=name, verb=verb),
            audience="admission",
        )
        if AffectedRowsResponse.model_validate_json(content).count == 0:
            raise _service_not_found(name)
        await self._write_audit_log(caller, f"reward_service.{verb.value}", name, "{}")
        return await self.get(name, caller)

    async def remove(self, name: str, caller: Caller) -> None:
        """Unregister a service. Raises `Conflict` while it has unsettled actions or if it is built-in, and
        `NotFound`.
        """
        _require_root_project(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/remove-service", RemoveServiceRequest(name=name), audience="admission"
        )
        answer = RemoveServiceResponse.model_validate_json(content)
        if answer.unsettled:
            raise Conflict(
                f"{answer.unsettled} actions of reward service {name!r} have not settled: cancel them or wait for them"
            )
        if not answer.removed:
            there = (await self.get(name, caller)).name
            if there in VERIFIERS:
                raise Conflict(f"{there!r} is a built-in verifier and cannot be unregistered")
            raise Conflict(f"{there!r} comes with its node and cannot be unregistered: use `drain` to stop new actions")
        await self._write_audit_log(caller, "reward_service.unregister", name, "{}")

    async def _write_audit_log(self, caller: Caller, verb: str, name: str, detail: str) -> None:
        async with self._store.write() as tx:
            await insert_audit_log(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb=verb,
                target=f"reward_service:{name}",
                detail=detail,
            )


def _require_root_project(caller: Caller) -> None:
    """Raise `Forbidden` unless the key belongs to the first project; services are shared by all projects."""
    if not caller.is_root:
        raise Forbidden(f"reward services can be changed only with a key of project `{ROOT_PROJECT}`")


def _redact_for(caller: Caller, service: RewardService) -> RewardService:
    """Hide sources, judge options and health details from callers who may not administer services."""
    if caller.is_root and caller.has_scope("admin:read"):
        return service
    nodes = [each.model_copy(update={"health": each.health.partition(":")[0]}) for each in service.nodes]
    options = {name: value for name, value in service.options.items() if name != "judge"}
    return service.model_copy(update={"model": None, "options": options, "nodes": nodes})


def _service_not_found(name: str) -> NotFound:
    message = f"reward service {name!r} does not exist. `tangram reward-services list` shows the available ones"
    return NotFound(message, errors=[FieldError(field="name", message=message)])


def _verifier_services(cpu_nodes: Row) -> list[RewardService]:
    """Return the verifiers, which run on any CPU node and on no device."""
    return [_verifier_service(name, cpu_nodes) for name in VERIFIERS]


def _verifier_service(name: str, cpu_nodes: Row) -> RewardService:
    live, without = cpu_nodes.live, cpu_nodes.without_math if name == "math" else 0
    problem = None
    if not live:
        problem = "no CPU node takes actions"
    elif without:
        problem = (
            f"{without} of {live} CPU nodes cannot run it, because their sandboxes cannot import math-verify."
            " `tangram doctor` on the node says what to do"
        )
    return RewardService(
        name=name, kind=name, model="a program in a sandbox", available=live > without, problem=problem, nodes=[]
    )


def _merge_services(reports: Sequence[Row], desired: Sequence[Row]) -> list[RewardService]:
    """Combine reports of nodes and the registry, ordered by name."""
    wished = {row.name: row for row in desired}
    registered = {row.name: row.registered_at for row in desired if row.kind is not None}
    by_name: defaultdict[str, list[tuple[dict[str, object], Row]]] = defaultdict(list)
    for row in reports:
        entry = json.loads(row.said)
        # A node may not know yet that a service was removed, or removed and registered again.
        if not entry.get("registered", False) or entry.get("registered_at") == registered.get(entry["name"], -1.0):
            by_name[entry["name"]].append((entry, row))
    names = sorted(by_name.keys() | registered.keys())
    return [_build_service(name, by_name.get(name, []), wished.get(name)) for name in names]


def _build_service(name: str, nodes: Sequence[tuple[dict[str, object], Row]], desired: Row | None) -> RewardService:
    on_nodes = [
        ServiceReplica.model_validate(
            {**said, "node": row.node, "available": row.available, "in_flight": row.in_flight}
        )
        for said, row in nodes
    ]
    described = dict(next((said for said, _ in nodes if said.get("slots")), nodes[0][0])) if nodes else {}
    if desired is not None:
        described |= {"pinned": desired.pinned, "drained": desired.drained}
        if desired.kind is not None:
            described |= {"kind": desired.kind, "model": desired.source, "options": json.loads(desired.options)}
            described["registered"] = True
    # If all nodes lack the service, keep their reasons; otherwise omit the nodes that lack it.
    on_nodes = [each for each in on_nodes if not each.health.startswith(HEALTH_NOT_HERE)] or on_nodes
    available = any(each.available for each in on_nodes)
    return RewardService.model_validate({**described, "name": name, "available": available, "nodes": on_nodes})
