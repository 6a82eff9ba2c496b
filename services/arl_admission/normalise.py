"""Normalisation of actions for the scheduler and the managers: integers, one elastic resource, one class."""

import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal
from uuid import UUID

from pydantic import TypeAdapter

from arl_admission.verifiers.payloads import is_verified, verifier_payload
from arl_core.domain.model import ResourceShape, call_resource, slot_resource
from arl_core.durations.shared_demand import SHARED_GUARANTEE_MILLI, SHARED_SLOT_MILLI
from arl_wire.actions.action import AmdahlElasticity, CpuRange, NoElasticity, SubmitActionRequest, TableElasticity
from arl_wire.actions.trajectory_hints import TRAJECTORY_HINTS
from arl_wire.calls import CallRequest
from arl_wire.environments.network import NetworkAllowList
from arl_wire.internal.admission import AdmitItem, CoalescedCall
from arl_wire.internal.scheduler import GangMembership, QueuedActionRow, TrajectoryHintsPayload
from arl_wire.scores import ScoreItem

__all__ = ["CAPABILITY_OF", "CpuForm", "NewAction", "demand_of", "normalise"]

ELASTIC_STEP_MILLI = 1000
CpuForm = Literal["exclusive", "shared"]
_ITEMS_ADAPTER = TypeAdapter(list[ScoreItem])
"""Adapter for all items in one call."""
CAPABILITY_OF = {"cpu": "cpu_quota", "memory": "memory", "pids": "pids", "disk": "disk_total"}
"""Capability that a node must enforce, by the name that a client may require."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAction:
    """A row of `actions` and a row of `action_specs`, ready for the insert. Fields have the names of columns."""

    id: UUID
    project_id: int
    queue_id: int
    kind: str
    trajectory: str | None
    retries: int
    idempotent: bool
    deadline_s: float | None
    class_key: int
    shape: str
    demand: str
    elastic: str | None
    cpu_sharing: str | None
    environment: str
    priority: int
    timeout_s: float
    wall_timeout_s: float | None
    step: int | None
    hints: str | None
    labels: str
    traceparent: str | None
    tracestate: str | None
    payload: str
    key: str | None
    body_hash: str | None
    gang: str | None = None
    service: str | None = None
    """Registered service of the action. If the service was removed, no row is inserted."""

    def to_queued_row(self, *, submitted: float, deadline: float | None) -> QueuedActionRow:
        """Return the row as the scheduler's poll would read it."""
        return QueuedActionRow(
            id=self.id,
            queue_id=self.queue_id,
            kind=self.kind,
            trajectory=self.trajectory,
            submitted=submitted,
            deadline=deadline,
            class_key=self.class_key,
            shape=self.shape,
            demand=json.loads(self.demand),
            elastic=json.loads(self.elastic) if self.elastic else None,
            cpu_sharing=json.loads(self.cpu_sharing) if self.cpu_sharing else None,
            environment=json.loads(self.environment),
            priority=self.priority,
            timeout_s=self._time_limit_s(),
            gang=GangMembership.model_validate_json(self.gang) if self.gang is not None else None,
            step=self.step,
            hints=TrajectoryHintsPayload.model_validate_json(self.hints) if self.hints is not None else None,
        )

    def _time_limit_s(self) -> float:
        """Return the real time after which the action has ended; with shared cores, an estimate of it."""
        if self.wall_timeout_s is None:
            return self.timeout_s
        return self.wall_timeout_s if self.cpu_sharing is not None else min(self.timeout_s, self.wall_timeout_s)


def normalise(
    item: AdmitItem,
    *,
    id: UUID,
    queue_id: int,
    gang: GangMembership | None = None,
    registered: Collection[str] = (),
    cpu_form: CpuForm = "shared",
) -> NewAction:
    """Return the rows of an action.

    `registered` has the names of registered services. `cpu_form` applies to actions that choose no form.
    """
    action = item.action
    sharing = _sharing(action, cpu_form)
    demand = demand_of(action, cpu_form)
    elastic = _elastic(action) if sharing is None else None
    hints = {name: value for name in TRAJECTORY_HINTS if (value := getattr(action, name)) is not None}
    return NewAction(
        id=id,
        project_id=item.project_id,
        queue_id=queue_id,
        kind=action.kind,
        trajectory=action.trajectory,
        retries=action.retries,
        idempotent=action.idempotent,
        deadline_s=action.deadline_s,
        class_key=_class_key(queue_id, item, demand, elastic, sharing),
        shape=_shape(action).value,
        demand=json.dumps(demand),
        elastic=json.dumps(elastic) if elastic else None,
        cpu_sharing=json.dumps(sharing) if sharing else None,
        environment=json.dumps(_environment(item)),
        priority=action.priority,
        timeout_s=action.timeout_s,
        wall_timeout_s=action.wall_timeout_s,
        step=action.step,
        hints=json.dumps(hints) if hints else None,
        labels=json.dumps(action.labels),
        traceparent=item.traceparent,
        tracestate=item.tracestate,
        payload=json.dumps(_payload(action, item.asked_for)),
        key=item.key,
        body_hash=item.body_hash or "" if item.key is not None else None,
        gang=gang.model_dump_json() if gang is not None else None,
        service=action.service if action.service in registered else None,
    )


def demand_of(action: SubmitActionRequest, cpu_form: CpuForm = "shared") -> dict[str, int]:
    """Return minimum amounts in integers. Actions without a process need no cores; model scores need a slot."""
    if action.endpoint is not None:
        return {call_resource(action.endpoint): 1}
    if action.service is not None and not is_verified(action):
        return {slot_resource(action.service): 1}
    return {
        "cpu_milli": _min_milli(action, cpu_form) if action.kind in ("exec", "score") else 0,
        "memory_mib": action.demand.memory_mib,
        "disk_mib": action.demand.disk_mib,
        **action.demand.resources,
    }


def _environment(item: AdmitItem) -> dict[str, Any]:
    """Return the part of an action that describes its environment."""
    action = item.action
    environment: dict[str, Any] = {
        "id": str(action.environment.id) if action.environment.id is not None else None,
        "scope": action.environment.scope,
        "template": action.environment.template,
        "idle_ttl_s": action.environment.idle_ttl_s,
        "memory_mib": action.demand.memory_mib,
        "disk_mib": action.demand.disk_mib,
        "pids": action.demand.pids,
        "require": sorted(CAPABILITY_OF[name] for name in action.require),
    }
    if action.kind == "environment.create" and action.network not in (None, "none"):
        environment["network"] = _network(action)
    if item.begins_with is not None:
        environment |= {"snapshot": str(item.begins_with.snapshot), "node": item.begins_with.node}
    return environment


def _shape(action: SubmitActionRequest) -> ResourceShape:
    is_counted = action.kind == "call" or (action.kind == "score" and not is_verified(action))
    return ResourceShape.QUOTA if is_counted else ResourceShape.DIVISIBLE


def _milli(cores: float) -> int:
    return max(1, round(cores * 1000))


def _min_milli(action: SubmitActionRequest, cpu_form: CpuForm) -> int:
    """Return the milli-cores that the scheduler counts for the action at least."""
    cpu = action.demand.cpu
    if cpu is None:
        return SHARED_SLOT_MILLI if _is_shared(action, cpu_form) else 1000
    return _milli(cpu.min if isinstance(cpu, CpuRange) else cpu)


def _is_shared(action: SubmitActionRequest, cpu_form: CpuForm) -> bool:
    """Return True if the action shares cores with others. Only programs can."""
    cpu = action.demand.cpu
    exclusive = cpu.exclusive if isinstance(cpu, CpuRange) else None
    return action.kind == "exec" and (cpu_form == "shared" if exclusive is None else not exclusive)


def _sharing(action: SubmitActionRequest, cpu_form: CpuForm) -> dict[str, Any] | None:
    """Return the sharing of cores as the fields of `CpuSharing`; None for exclusive cores."""
    if not _is_shared(action, cpu_form):
        return None
    cpu = action.demand.cpu
    most = cpu.max if isinstance(cpu, CpuRange) else None
    return {
        "guarantee_milli": SHARED_GUARANTEE_MILLI if cpu is None else _min_milli(action, cpu_form),
        "limit_milli": None if most is None else _milli(most),
        "is_declared": cpu is not None,
    }


def _elastic(action: SubmitActionRequest) -> dict[str, Any] | None:
    cpu = action.demand.cpu
    if action.kind != "exec" or not isinstance(cpu, CpuRange) or cpu.max is None:
        return None
    if _milli(cpu.max) == _milli(cpu.min):
        return None
    return {
        "resource": "cpu_milli",
        "min": _milli(cpu.min),
        "max": _milli(cpu.max),
        "step": ELASTIC_STEP_MILLI,
        "elasticity": _elasticity(action),
        "resizable": action.elasticity.resizable,
    }


def _elasticity(action: SubmitActionRequest) -> dict[str, Any]:
    match action.elasticity:
        case AmdahlElasticity(parallel_fraction=fraction):
            return {"model": "amdahl", "parallel_fraction": fraction}
        case TableElasticity(seconds=seconds):
            return {"model": "table", "seconds": {str(_milli(float(k))): v for k, v in seconds.items()}}
        case NoElasticity():
            return {"model": "none"}


def _class_key(
    queue_id: int,
    item: AdmitItem,
    demand: dict[str, int],
    elastic: dict[str, Any] | None,
    sharing: dict[str, Any] | None,
) -> int:
    """Return the class in signed 64 bits. Actions of one task, profile and demand shape share a class."""
    action, begins_with = item.action, item.begins_with
    program = action.service or action.endpoint or _program_name(action)
    home: list[Any] = [action.environment.scope, action.environment.template]
    if begins_with is not None:
        home.append(begins_with.node)
    parts: list[Any] = [queue_id, action.kind, action.profile or program, demand, elastic, home, sorted(action.require)]
    parts += [sharing] if sharing is not None else []
    digest = blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _program_name(action: SubmitActionRequest) -> str:
    if action.argv:
        return action.argv[0]
    return "python" if action.session is None else "session"


def _payload(action: SubmitActionRequest, coalesced: Sequence[CoalescedCall]) -> dict[str, Any]:
    """Return the part of an action that only the manager reads, with bytes in base64."""
    if action.request is not None:
        return _call_payload(action, action.request)
    if is_verified(action):
        return verifier_payload(action)
    if action.kind == "score":
        scored = {"service": action.service, "items": _ITEMS_ADAPTER.dump_python(action.items, exclude_none=True)}
        return scored | ({"asked_for": [each.model_dump() for each in coalesced]} if coalesced else {})
    return {
        "argv": action.argv,
        "source": action.source,
        "stdin": b64encode(action.stdin.encode()).decode(),
        "session": action.session,
        "command": action.command,
        "stdin_open": action.stdin_open,
        "env": action.env,
        "cwd": action.cwd,
        "user": action.user,
        "network": _network(action) if action.kind == "exec" else None,
        "files": {path: b64encode(content).decode() for path, content in action.files.items()},
        "fetch": action.fetch,
    }


def _network(action: SubmitActionRequest) -> str | dict[str, Any] | None:
    """Return the network as it is stored, or None if the action sets none."""
    setting = action.network
    return setting.model_dump() if isinstance(setting, NetworkAllowList) else setting


def _call_payload(action: SubmitActionRequest, request: CallRequest) -> dict[str, Any]:
    """Return the payload of a call. Its headers include the content type of its body."""
    headers = request.headers
    if (kind := request.content_type) is not None and "content-type" not in map(str.lower, headers):
        headers = {**headers, "Content-Type": kind}
    return {
        "endpoint": action.endpoint,
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "raw_query": request.raw_query,
        "headers": headers,
        "body": b64encode(request.content).decode(),
        "idempotent": action.idempotent,
    }
