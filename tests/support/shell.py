"""A handle for one session of an environment on a bench."""

import asyncio
from typing import Any

from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec, ExecutionReport
from support.sandbox import Bench, a_session_command, an_environment

__all__ = ["Shell"]


class Shell:
    """A client's handle for one session of an environment."""

    def __init__(self, bench: Bench, environment: EnvironmentSpec | None = None, name: str = "main") -> None:
        self.bench, self.name = bench, name
        self.environment = environment or an_environment()

    def spec(self, command: str, **changes: Any) -> ExecSpec:
        return a_session_command(self.name, command, environment=self.environment, **changes)

    async def run(self, command: str, **changes: Any) -> ExecutionReport:
        async with asyncio.timeout(30):
            return await self.bench.run(self.spec(command, **changes))

    async def says(self, command: str, **changes: Any) -> str:
        report = await self.run(command, **changes)
        assert report.outcome == "ok", report
        assert report.stderr.total_bytes == 0
        return report.stdout.data.decode()
