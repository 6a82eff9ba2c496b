"""The engines that share a worker's device: known from its start, whoever is served by them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from arl_core.residency import Residence
from arl_gpu.engine import Engine, EngineSpec, EngineTrouble
from arl_gpu.residency import Residency

__all__ = ["Engines", "key_of"]


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
    ) -> None:
        """`held`: in use, by somebody who outlived the last worker; `asleep`: that were told to sleep last."""
        self._residency = residency
        self._engines = {
            name: Engine(EngineSpec(**spec), key=keys.get(name), is_asleep=name in asleep)
            for name, spec in specs.items()
        }
        for name in self._engines:
            with suppress(EngineTrouble):  # whoever wants it hears of it
                self.adopt(name)
        for name in held:
            if self.states.get(name) == Residence.RESIDENT:
                with suppress(EngineTrouble):
                    residency.hold(key_of(name))

    @property
    def states(self) -> dict[str, str]:
        known = self._residency.states
        return {name: known.get(key_of(name), Residence.COLD).value for name in self._engines}

    def adopt(self, name: str) -> None:
        """Nothing, where it is known. Raises `EngineTrouble`, and `LookupError` for one that is not this device's."""
        if self._residency.states.get(key_of(name), Residence.COLD) is Residence.COLD:
            self._residency.adopt(key_of(name), self._engines[name])

    def look_at(self, name: str, *, restarted: bool) -> None:
        """After trouble with it. Raises `EngineTrouble` where there is more."""
        if restarted:
            self._engines[name].was_restarted()
        self.adopt(name)
        self._residency.look_at(key_of(name))
