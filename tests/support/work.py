"""File operations on environments, sent directly to a launcher."""

from typing import Any
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_cpu.contract.environment_access import FileOperation
from arl_cpu.contract.executor import EnvironmentSpec
from support.sandbox import Bench

__all__ = ["begun", "moved"]

LIMIT_S = 60


async def begun(sandbox: Bench, environment: EnvironmentSpec, op: str, **asked: Any) -> FileOperation:
    wanted = {"op": op, "path": "", "limit_s": LIMIT_S, "max_bytes": 1 << 24, **asked}
    return await sandbox.executor.start_file_operation(Fence(uuid4(), 1), environment.id, wanted)


async def moved(sandbox: Bench, source: EnvironmentSpec, target: EnvironmentSpec) -> None:
    taking = await begun(sandbox, source, "pack", whole=True)
    await taking.read_response()
    content = b"".join([chunk async for chunk in taking.output()])
    await taking.close()
    giving = await begun(sandbox, target, "unpack", whole=True)
    try:
        await giving.read_response()
        await giving.send(content)
        await giving.send(b"")
        await giving.read_response()
    finally:
        await giving.close()
