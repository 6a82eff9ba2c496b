"""The engines that share a worker's device: known from its start, whoever is served by them."""

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
    """By what name the residency has it: none that a service can have."""
    return f"engine:{engine}"


class EngineSet:
    """Whatever an engine holds when this worker starts is counted before anything else comes onto the device."""

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
        """`held`: in use, by somebody who outlived the last worker; `asleep`: that were told to sleep last.

        `directory`: where it is kept what those were told that can't be asked; without it only `asleep` says so.
        `on_step` is called, by the caller's thread, before and after each wait for one.
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
        for name in sorted(self._engines, key=lambda each: each not in in_use):  # what is in use has its room first
            residency.adopt_engine(residency_key(name), self._engines[name])
            with suppress(EngineError):  # whoever wants it hears of it
                self._update_state(name, is_used=name in in_use)
            for _ in range(in_use.count(name)):
                residency.restore_engine_user(residency_key(name))

    @property
    def unconfirmed(self) -> Collection[str]:
        """They count as awake, and do not leave: they could not be asked what they hold, or did not go to sleep."""
        staying = self._residency.unevictable
        return {name for name in self._engines if residency_key(name) in staying}

    @property
    def sleep_errors(self) -> dict[str, str]:
        """Why each that was told to sleep did not."""
        return {name: each.sleep_error for name, each in self._engines.items() if each.sleep_error is not None}

    @property
    def states(self) -> dict[str, str]:
        known = self._residency.states
        return {name: known.get(residency_key(name), ResidencyState.COLD).value for name in self._engines}

    def acquire(self, name: str, *, users: int, waiting: Sequence[str] = ()) -> bool:
        """As `Residency.hold`. Raises also `LookupError` for one that is not this device's, and `EngineTooLarge`."""
        self._check_fits(name)
        return self._residency.acquire_engine(residency_key(name), users=users, waiting=waiting)

    def check_state(self, name: str, *, restarted: bool = False) -> None:
        """After trouble with it, or before anybody wants it. Raises `EngineTrouble` where there is more."""
        if restarted:
            self._engines[name].mark_restarted()
        self._update_state(name)

    def _update_state(self, name: str, *, is_used: bool = False) -> None:
        self._residency.check_engine(residency_key(name), is_used=is_used)
        self._check_fits(name)

    def _check_fits(self, name: str) -> None:
        size, room = self._engines[name].size, self._residency.capacity
        if size > room:
            raise EngineTooLarge(f"engine {name} takes {size // MIB} MiB, and its device has {room // MIB} MiB in all")
