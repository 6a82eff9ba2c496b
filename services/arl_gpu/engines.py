"""The engines that share a worker's device: known from its start, whoever is served by them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from arl_core.residency import Residence
from arl_gpu.engine import Engine, EngineSpec, EngineTooLarge, EngineTrouble
from arl_gpu.last_order import LastOrder
from arl_gpu.residency import Residency

__all__ = ["Engines", "key_of"]

MIB = 1 << 20


def key_of(engine: str) -> str:
    """By what name the residency has it: none that a service can have."""
    return f"engine:{engine}"


class Engines:
    """Whatever an engine holds when this worker starts is counted before anything else comes onto the device."""

    def __init__(
        self,
        specs: Mapping[str, Mapping[str, Any]],
        residency: Residency,
        *,
        keys: Mapping[str, str],
        held: Sequence[str] = (),
        asleep: Sequence[str] = (),
        directory: Path | None = None,
        on_step: Callable[[], None],
    ) -> None:
        """`held`: in use, by somebody who outlived the last worker; `asleep`: that were told to sleep last.

        `directory`: where it is kept what those were told that can't be asked; without it only `asleep` says so.
        `on_step` is called, by the caller's thread, before and after each wait for one.
        """
        self._residency = residency
        self._engines = {
            name: Engine(
                EngineSpec(**spec),
                key=keys.get(name),
                is_asleep=name in asleep,
                last=LastOrder(directory / f"{name}.json") if directory is not None else None,
                on_step=on_step,
            )
            for name, spec in specs.items()
        }
        for name in sorted(self._engines, key=lambda each: each not in held):  # what is in use has its room first
            residency.adopt(key_of(name), self._engines[name])
            with suppress(EngineTrouble):  # whoever wants it hears of it
                self._look_at(name, is_used=name in held)
            for _ in range(held.count(name)):
                residency.keep(key_of(name))

    @property
    def unheard(self) -> Collection[str]:
        """They count as awake, and do not leave: they could not be asked what they hold, or did not go to sleep."""
        staying = self._residency.staying
        return {name for name in self._engines if key_of(name) in staying}

    @property
    def refusals(self) -> dict[str, str]:
        """Why each that was told to sleep did not."""
        return {name: each.refusal for name, each in self._engines.items() if each.refusal is not None}

    @property
    def states(self) -> dict[str, str]:
        known = self._residency.states
        return {name: known.get(key_of(name), Residence.COLD).value for name in self._engines}

    def hold(self, name: str, *, users: int, waiting: Sequence[str] = ()) -> bool:
        """As `Residency.hold`. Raises also `LookupError` for one that is not this device's, and `EngineTooLarge`."""
        self._must_fit(name)
        return self._residency.hold(key_of(name), users=users, waiting=waiting)

    def look_at(self, name: str, *, restarted: bool = False) -> None:
        """After trouble with it, or before anybody wants it. Raises `EngineTrouble` where there is more."""
        if restarted:
            self._engines[name].was_restarted()
        self._look_at(name)

    def _look_at(self, name: str, *, is_used: bool = False) -> None:
        self._residency.look_at(key_of(name), is_used=is_used)
        self._must_fit(name)

    def _must_fit(self, name: str) -> None:
        size, room = self._engines[name].size, self._residency.capacity
        if size > room:
            raise EngineTooLarge(f"engine {name} takes {size // MIB} MiB, and its device has {room // MIB} MiB in all")
