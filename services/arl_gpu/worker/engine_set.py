"""The engines that share a worker's device. They are known from the worker's start, even without judges."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.worker.engine_controller import EngineController, EngineError, EngineSpec, EngineTooLarge
from arl_gpu.worker.engine_state_file import EngineStateFile
from arl_gpu.worker.residency import DeviceResidency

__all__ = ["EngineSet", "residency_key"]

MIB = 1 << 20


def residency_key(engine: str) -> str:
    """Return the engine's key in the residency. It differs from every service name."""
    return f"engine:{engine}"


class EngineSet:
    """The engines of one device. Their memory is counted before any service is loaded onto the device."""

    def __init__(
        self,
        specs: Mapping[str, Mapping[str, Any]],
        residency: DeviceResidency,
        *,
        keys: Mapping[str, str],
        in_use: Sequence[str] = (),
        asleep: Sequence[str] = (),
        directory: Path | None = None,
        on_progress: Callable[[], None],
    ) -> None:
        """Initialise the engines.

        Args:
            specs: The `EngineSpec` of each engine, by name.
            residency: The residency of the device.
            keys: The API keys, by engine name.
            in_use: Engines with users that outlived the last worker, once for each user.
            asleep: Engines whose last command was to sleep.
            directory: Directory of the state files for engines that cannot report their state; None: only `asleep`.
            on_progress: Called in the caller's thread before and after each wait for an engine.
        """
        self._residency = residency
        self._engines = {
            name: EngineController(
                EngineSpec(**spec),
                key=keys.get(name),
                is_asleep=name in asleep,
                state_file=EngineStateFile(directory / f"{name}.json") if directory is not None else None,
                on_progress=on_progress,
            )
            for name, spec in specs.items()
        }
        for name in sorted(self._engines, key=lambda each: each not in in_use):  # reserve memory of used engines first
            residency.adopt_engine(residency_key(name), self._engines[name])
            with suppress(EngineError):  # a later request reports the error
                self._update_state(name, is_used=name in in_use)
            for _ in range(in_use.count(name)):
                residency.restore_engine_user(residency_key(name))

    @property
    def unconfirmed(self) -> Collection[str]:
        """Engines that count as awake and cannot be evicted: their state is unknown, or they did not go to sleep."""
        staying = self._residency.unevictable
        return {name for name in self._engines if residency_key(name) in staying}

    @property
    def sleep_errors(self) -> dict[str, str]:
        """Reason why each engine did not sleep on command."""
        return {name: each.sleep_error for name, each in self._engines.items() if each.sleep_error is not None}

    @property
    def states(self) -> dict[str, str]:
        """Return the residency state of each engine, by name."""
        known = self._residency.states
        return {name: known.get(residency_key(name), ResidencyState.COLD).value for name in self._engines}

    def acquire(self, name: str, *, users: int, waiting: Sequence[str] = ()) -> bool:
        """Acquire an engine as in `DeviceResidency.acquire_engine`.

        Raises also `LookupError` for an engine of another device, and `EngineTooLarge`.
        """
        self._check_fits(name)
        return self._residency.acquire_engine(residency_key(name), users=users, waiting=waiting)

    def check_state(self, name: str, *, restarted: bool = False) -> None:
        """Check an engine's state after an error or before its use. Raises `EngineError` if the error persists."""
        if restarted:
            self._engines[name].mark_restarted()
        self._update_state(name)

    def _update_state(self, name: str, *, is_used: bool = False) -> None:
        self._residency.check_engine(residency_key(name), is_used=is_used)
        self._check_fits(name)

    def _check_fits(self, name: str) -> None:
        size, room = self._engines[name].size, self._residency.capacity
        if size > room:
            raise EngineTooLarge(
                f"engine {name} needs {size // MIB} MiB, but its device has only {room // MIB} MiB in total"
            )
