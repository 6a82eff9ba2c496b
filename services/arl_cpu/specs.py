"""From a row's spec to what an executor runs."""

import json
from base64 import b64decode
from typing import Any

from sqlalchemy import Row

from arl_core.fence import Fence
from arl_core.model import Amounts
from arl_cpu.executor import EnvironmentSpec, ExecSpec

__all__ = ["exec_spec"]


def exec_spec(row: Row[Any], amounts: Amounts, cores: tuple[int, ...]) -> ExecSpec:
    environment = json.loads(row.environment)
    payload = json.loads(row.payload)
    return ExecSpec(
        fence=Fence(row.id, row.grant_no),
        environment=EnvironmentSpec(
            # An ephemeral environment is its action's own and carries its id.
            id=row.environment_id or row.id,
            scope=environment["scope"],
            template=environment["template"],
            memory_mib=environment["memory_mib"],
            disk_mib=environment["disk_mib"],
            pids=environment["pids"],
        ),
        argv=tuple(payload["argv"]) if payload["argv"] is not None else None,
        source=payload["source"],
        env=payload["env"],
        cwd=payload["cwd"],
        stdin=b64decode(payload["stdin"]),
        files={path: b64decode(content) for path, content in payload["files"].items()},
        fetch=tuple(payload["fetch"]),
        timeout_s=row.timeout_s,
        cpu_milli=amounts.get("cpu_milli", 0),
        cores=cores,
    )
