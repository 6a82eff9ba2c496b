"""Training steps, for both clients."""

from abc import abstractmethod
from typing import TypeVar
from urllib.parse import quote

from arl_tangram.operations import Operation, SdkRequest, call_with_retry
from arl_wire.steps import StepReport

__all__ = ["AsyncStepMethods", "StepMethods"]

Value = TypeVar("Value")


class StepMethods:
    """Methods for training steps."""

    _retry_timeout_s: float

    def get_step(self, task: str, step: int) -> StepReport:
        """Return the progress of a training step, and what its slowest trajectory waited for."""
        return self._run(_get_step(task, step, retry_timeout_s=self._retry_timeout_s))

    def end_step(self, task: str, step: int) -> None:
        """End a training step. The scheduler learns the lengths of its trajectories. Running actions continue."""
        self._run(_end_step(task, step, retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    def _run(self, operation: Operation[Value]) -> Value: ...


class AsyncStepMethods:
    """The methods of `StepMethods`, asynchronous."""

    _retry_timeout_s: float

    async def get_step(self, task: str, step: int) -> StepReport:
        """Return the progress of a training step, and what its slowest trajectory waited for."""
        return await self._run(_get_step(task, step, retry_timeout_s=self._retry_timeout_s))

    async def end_step(self, task: str, step: int) -> None:
        """End a training step. The scheduler learns the lengths of its trajectories. Running actions continue."""
        await self._run(_end_step(task, step, retry_timeout_s=self._retry_timeout_s))

    @abstractmethod
    async def _run(self, operation: Operation[Value]) -> Value: ...


def _get_step(task: str, step: int, *, retry_timeout_s: float) -> Operation[StepReport]:
    call = SdkRequest(method="GET", path=_path(task, step))
    return StepReport.model_validate_json((yield from call_with_retry(call, retry_timeout_s)))


def _end_step(task: str, step: int, *, retry_timeout_s: float) -> Operation[None]:
    yield from call_with_retry(SdkRequest(method="POST", path=f"{_path(task, step)}:end"), retry_timeout_s)


def _path(task: str, step: int) -> str:
    return f"/v1/tasks/{quote(task, safe='')}/steps/{step}"
