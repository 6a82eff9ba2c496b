"""Which cores an action gets. Whole-core amounts are exclusive among themselves."""

from collections.abc import Iterable

from arl_core.fence import Fence

__all__ = ["CoreMap"]


class CoreMap:
    """Amounts of whole cores get cores of their own; a fraction floats over what is not exclusive."""

    def __init__(self, cores: Iterable[int]) -> None:
        self._cores = tuple(cores)
        self._exclusive: dict[int, Fence] = {}

    def assign(self, fence: Fence, cpu_milli: int) -> tuple[int, ...]:
        """The caller made sure that the amounts fit, so there are always enough cores."""
        if cpu_milli % 1000:
            return self._not_exclusive() or self._cores
        free = self._not_exclusive()
        chosen = free[-(cpu_milli // 1000) :] if cpu_milli else ()
        for core in chosen:
            self._exclusive[core] = fence
        return chosen or free or self._cores

    def adopt(self, fence: Fence, cores: Iterable[int], cpu_milli: int) -> None:
        """What an earlier life of this manager assigned."""
        if cpu_milli and cpu_milli % 1000 == 0:
            self._exclusive |= dict.fromkeys(cores, fence)

    def release(self, fence: Fence) -> None:
        self._exclusive = {core: holder for core, holder in self._exclusive.items() if holder != fence}

    def _not_exclusive(self) -> tuple[int, ...]:
        return tuple(core for core in self._cores if core not in self._exclusive)
