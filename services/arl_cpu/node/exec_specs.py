"""Conversion of a row's specification to an `ExecSpec`, or to a report of why the attempt must not start."""

import json
from base64 import b64decode
from typing import Any
from uuid import UUID

from arl_core.domain.model import CpuSharing, Fence
from arl_core.domain.states import ENVIRONMENT_OUT_OF_MEMORY
from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec, ExecutionReport
from arl_cpu.contract.verifier_packages import VARIABLE, find_packages
from arl_cpu.egress.node_networks import missing_network_report
from arl_cpu.node.allocations import AttemptAllocation
from arl_store.tx import Row
from arl_wire.internal.node import GrantPayload
from arl_wire.reward_services.kinds import VERIFIERS

__all__ = [
    "allocation_from_grant",
    "exec_spec_from_row",
    "missing_feature_report",
    "refusal_report",
    "sharing_from_row",
]


def refusal_report(row: Row, *, enforced: frozenset[str]) -> ExecutionReport | None:
    """Return the report of an attempt that must not start: cancelled, environment lost, or isolation missing."""
    fence = Fence(row.id, row.grant_no)
    if row.cancel:
        return ExecutionReport(fence=fence, outcome="cancelled")
    environment = json.loads(row.environment)
    named = environment.get("id")
    is_another = named is not None and UUID(named) != row.environment_id
    if not is_another and not row.environment_live and row.end_reason == ENVIRONMENT_OUT_OF_MEMORY:
        return ExecutionReport(
            fence=fence,
            outcome="limit_exceeded",
            reason=ENVIRONMENT_OUT_OF_MEMORY,
            message="an earlier program used up the memory of the environment, which ended; end the trajectory to start"
            " a new one",
            environment_lost=True,
        )
    if is_another or not row.environment_live:
        return ExecutionReport(
            fence=fence,
            outcome="infra_error",
            reason="environment_lost",
            message="the environment of the trajectory is lost; end the trajectory to start a new one",
            # The action named an older environment, so its loss does not affect the current one.
            environment_lost=not is_another,
        )
    if row.kind == "environment.create" and not row.may_make:
        return ExecutionReport(
            fence=fence, outcome="user_error", reason="environment_exists", message="the environment already exists"
        )
    missing = set(environment.get("require", ())) - enforced
    if missing:
        message = f"this node does not enforce {', '.join(sorted(missing))}"
        return ExecutionReport(fence=fence, outcome="infra_error", reason="not_enforced", message=message)
    return None


def missing_feature_report(spec: ExecSpec, *, enforced: frozenset[str] | set[str]) -> ExecutionReport | None:
    """Return the report of an action that names a user, or needs a network, on a node that does not provide it."""
    if spec.user is None or "users" in enforced:
        return missing_network_report(spec, enforced=enforced)
    message = f"user {spec.user!r}: environments of this node have one user, as `users` of `tangram doctor` explains"
    return ExecutionReport(fence=spec.fence, outcome="infra_error", reason="not_enforced", message=message)


def sharing_from_row(row: Row) -> CpuSharing | None:
    """Return the sharing of cores of an action; None if it has exclusive cores or a quota."""
    return CpuSharing(**json.loads(row.cpu_sharing)) if row.cpu_sharing else None


def exec_spec_from_row(
    row: Row, attempt: AttemptAllocation, cores: tuple[int, ...], sharing: CpuSharing | None = None
) -> ExecSpec:
    """Return the specification of an attempt from its row."""
    environment = json.loads(row.environment)
    payload = json.loads(row.payload)
    return ExecSpec(
        fence=Fence(row.id, row.grant_no),
        environment=EnvironmentSpec(
            # An ephemeral environment belongs to one action and has its id.
            id=row.environment_id or row.id,
            scope=environment["scope"],
            template=environment["template"],
            memory_mib=environment["memory_mib"],
            disk_mib=environment["disk_mib"],
            pids=environment["pids"],
            network=json.loads(row.network) if row.network is not None else None,
            network_version=row.network_version,
            may_make=row.may_make,
        ),
        argv=tuple(payload["argv"]) if payload["argv"] is not None else None,
        source=payload["source"],
        env=payload["env"] | _verifier_variables(payload),
        cwd=payload["cwd"],
        user=payload.get("user"),
        network=payload.get("network"),
        stdin=b64decode(payload["stdin"]),
        stdin_open=payload.get("stdin_open", False),
        session=payload.get("session"),
        command=payload.get("command"),
        files={path: b64decode(content) for path, content in payload["files"].items()},
        fetch=tuple(payload["fetch"]),
        timeout_s=row.timeout_s,
        wall_timeout_s=row.wall_timeout_s,
        cpu_milli=attempt.cpu_milli,
        cores=cores,
        sharing=sharing,
        expected_cpu_s=attempt.expected_cpu_s,
        is_critical=attempt.is_critical,
        max_cpu_milli=max(row.widest_cpu_milli, (sharing.limit_milli or 0) if sharing is not None else 0),
        resize_seq=attempt.resize_seq,
    )


def _verifier_variables(payload: dict[str, Any]) -> dict[str, str]:
    """Return the variable that tells a verifier's program where its packages are."""
    packages = find_packages() if payload.get("service") in VERIFIERS else None
    return {VARIABLE: packages} if packages is not None else {}


def allocation_from_grant(grant: GrantPayload) -> AttemptAllocation:
    """Return the allocation that a grant describes."""
    known = {} if grant.expected_cpu_s is None else {"expected_cpu_s": grant.expected_cpu_s}
    fence = Fence(grant.id, grant.grant_no)
    return AttemptAllocation(
        fence, grant.amounts, grant.environment_id, grant.amounts_seq, is_critical=grant.is_critical, **known
    )
