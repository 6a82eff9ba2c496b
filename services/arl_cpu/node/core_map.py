"""Which cores an action gets. Whole-core amounts are exclusive among themselves."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from arl_core.domain.model import Fence

__all__ = ["CoreMap", "choose_cores"]


def choose_cores(
    count: int,
    candidates: Iterable[int],
    *,
    numa_nodes: Mapping[int, int],
    preferred: Collection[int] = (),
    load: Counter[int] | None = None,
) -> tuple[int, ...]:
    """`count` of the candidates, or all where there are fewer.

    Those to keep come first, then cores of their NUMA nodes, then as few further nodes as possible: the fullest one
    that has enough. Inside a node the least loaded come first, then the highest numbers.
    """
    load = load if load is not None else Counter()
    ordered = sorted(candidates, reverse=True)
    ordered.sort(key=load.__getitem__)
    if numa_nodes:
        ordered = _group_by_numa_node(ordered, count, numa_nodes=numa_nodes, preferred=preferred, load=load)
    if preferred:
        ordered.sort(key=lambda core: core not in preferred)
    return tuple(sorted(ordered[:count]))


def _group_by_numa_node(
    ordered: Iterable[int], count: int, *, numa_nodes: Mapping[int, int], preferred: Collection[int], load: Counter[int]
) -> list[int]:
    by_node: dict[int, list[int]] = {}
    for core in ordered:
        by_node.setdefault(numa_nodes.get(core, 0), []).append(core)

    def rank(node: int) -> tuple[int, bool, int, int, int]:
        cores = by_node[node]
        kept = sum(core in preferred for core in cores)
        if len(cores) < count:
            return -kept, True, 0, -len(cores), node
        return -kept, False, sum(load[core] for core in cores[:count]), len(cores), node

    return [core for node in sorted(by_node, key=rank) for core in by_node[node]]


@dataclass(frozen=True, slots=True)
class _FractionalShare:
    """A fraction's cores, and what it takes of each."""

    cores: tuple[int, ...]
    milli_each: int


class CoreMap:
    """Amounts of whole cores get cores of their own; a fraction gets as many as it can use at once, and shares them.

    `shared`: every amount gets all cores, and shares them.
    """

    def __init__(
        self, cores: Iterable[int], numa_nodes: Mapping[int, int] | None = None, *, shared: bool = False
    ) -> None:
        self._cores = tuple(cores)
        self._shared = shared
        self._numa_nodes = numa_nodes or {}
        self._exclusive: dict[int, Fence] = {}
        self._shares: dict[Fence, _FractionalShare] = {}
        self._load = Counter(dict.fromkeys(self._cores, 0))
        """What fractions take of each core."""

    def assign(self, fence: Fence, cpu_milli: int) -> tuple[int, ...]:
        """The caller made sure that the amounts fit, so there are always enough cores.

        What the fence has already stays its own beside the new ones, until `keep_only` says which of them it uses.
        """
        if self._shared:
            self._allocate(fence, self._cores, cpu_milli)
            return self._cores
        own = tuple(core for core, holder in self._exclusive.items() if holder == fence)
        had = own or self.cores_of(fence)
        self._unshare(fence)
        count = _core_count(cpu_milli)
        if not own and _is_whole(cpu_milli):
            had = tuple(core for core in had if not self._load[core])
        candidates = [core for core in self._cores if self._exclusive.get(core, fence) == fence]
        if _is_whole(cpu_milli) and len(own) >= count:
            candidates = list(own)
        chosen = choose_cores(
            count, candidates or self._cores, numa_nodes=self._numa_nodes, preferred=had, load=self._load
        )
        if _is_whole(cpu_milli):
            # Its own cores first: together with the new ones there are never more than the larger amount.
            chosen = (*own, *(core for core in chosen if core not in own))[:count]
        self._allocate(fence, chosen, cpu_milli)
        return chosen

    def cores_of(self, fence: Fence) -> tuple[int, ...]:
        """Every core that it holds: its own ones, or those that it shares."""
        own = {core for core, holder in self._exclusive.items() if holder == fence}
        return tuple(sorted(own.union(self._shares[fence].cores if fence in self._shares else ())))

    def adopt(self, fence: Fence, cores: Iterable[int], cpu_milli: int) -> None:
        """What an earlier life of this manager assigned."""
        self._allocate(fence, tuple(cores), cpu_milli)

    def replace(self, fence: Fence, cores: Iterable[int], cpu_milli: int) -> None:
        """The fence runs on these, and on no other core that it had."""
        self.release(fence)
        self._allocate(fence, tuple(cores), cpu_milli)

    def release(self, fence: Fence) -> None:
        self._exclusive = {core: holder for core, holder in self._exclusive.items() if holder != fence}
        self._unshare(fence)

    def _allocate(self, fence: Fence, cores: tuple[int, ...], cpu_milli: int) -> None:
        taken = any(self._exclusive.get(core, fence) != fence for core in cores)
        if _is_whole(cpu_milli) and not taken and not self._shared:
            self._exclusive |= dict.fromkeys(cores, fence)
        elif cores:
            # A node that holds more than it has shares cores; whose a core is does not change.
            self._unshare(fence)
            share = self._shares[fence] = _FractionalShare(cores, cpu_milli // len(cores))
            for core in cores:
                self._load[core] += share.milli_each

    def _unshare(self, fence: Fence) -> None:
        if (share := self._shares.pop(fence, None)) is None:
            return
        for core in share.cores:
            self._load[core] -= share.milli_each


def _is_whole(cpu_milli: int) -> bool:
    return cpu_milli > 0 and cpu_milli % 1000 == 0


def _core_count(cpu_milli: int) -> int:
    return max(1, -(-cpu_milli // 1000))
