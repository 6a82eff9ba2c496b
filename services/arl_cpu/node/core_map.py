"""Assignment of cores to actions. Actions with whole-core amounts never share a core with one another."""

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
    """Return `count` of the candidates, or all of them if there are fewer.

    Preferred cores come first, then cores of their NUMA nodes, then the fewest further nodes: the least loaded and
    smallest that has enough. Within a node the least loaded cores come first, then the highest numbers.
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
        """Return the sort key of a NUMA node; the best node has the smallest key."""
        cores = by_node[node]
        kept = sum(core in preferred for core in cores)
        if len(cores) < count:
            return -kept, True, 0, -len(cores), node
        return -kept, False, sum(load[core] for core in cores[:count]), len(cores), node

    return [core for node in sorted(by_node, key=rank) for core in by_node[node]]


@dataclass(frozen=True, slots=True)
class _FractionalShare:
    """The cores of a fractional amount and the load it adds to each."""

    cores: tuple[int, ...]
    milli_each: int


class CoreMap:
    """The map from attempts to cores. A whole-core amount gets exclusive cores; a fraction shares as many as it can
    use.

    Attempts with shared cores have all cores that no attempt has exclusively. With `shared`, every amount shares all
    cores.
    """

    def __init__(
        self, cores: Iterable[int], numa_nodes: Mapping[int, int] | None = None, *, shared: bool = False
    ) -> None:
        self._cores = tuple(cores)
        self._shared = shared
        self._numa_nodes = numa_nodes or {}
        self._exclusive: dict[int, Fence] = {}
        self._shares: dict[Fence, _FractionalShare] = {}
        self._sharers: set[Fence] = set()
        self._load = Counter(dict.fromkeys(self._cores, 0))
        """Load of the fractional amounts on each core, in millicores."""

    def assign(self, fence: Fence, cpu_milli: int) -> tuple[int, ...]:
        """Assign cores. The caller ensures that the amount fits, so there are always enough cores.

        Former exclusive cores stay allocated in addition to the new ones until `replace` is called.
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
            # Former exclusive cores come first, so the union with the new ones never exceeds the larger amount.
            chosen = (*own, *(core for core in chosen if core not in own))[:count]
        self._allocate(fence, chosen, cpu_milli)
        return chosen

    def share(self, fence: Fence) -> tuple[int, ...]:
        """Let the attempt share the cores that no attempt has exclusively, now and later. Return those of now."""
        self._sharers.add(fence)
        return self.shared_cores

    @property
    def has_sharers(self) -> bool:
        """Return True if an attempt shares cores."""
        return bool(self._sharers)

    @property
    def shared_cores(self) -> tuple[int, ...]:
        """Return the cores that no attempt has exclusively; all cores if an overallocated node has none."""
        return tuple(core for core in self._cores if core not in self._exclusive) or self._cores

    def cores_of(self, fence: Fence) -> tuple[int, ...]:
        """Return every core of the attempt, exclusive or shared."""
        if fence in self._sharers:
            return self.shared_cores
        own = {core for core, holder in self._exclusive.items() if holder == fence}
        return tuple(sorted(own.union(self._shares[fence].cores if fence in self._shares else ())))

    def adopt(self, fence: Fence, cores: Iterable[int], cpu_milli: int) -> None:
        """Restore an assignment of an earlier manager process."""
        self._allocate(fence, tuple(cores), cpu_milli)

    def replace(self, fence: Fence, cores: Iterable[int], cpu_milli: int) -> None:
        """Assign exactly these cores and free all others of the attempt."""
        self.release(fence)
        self._allocate(fence, tuple(cores), cpu_milli)

    def release(self, fence: Fence) -> None:
        """Free all cores of the attempt."""
        self._exclusive = {core: holder for core, holder in self._exclusive.items() if holder != fence}
        self._sharers.discard(fence)
        self._unshare(fence)

    def _allocate(self, fence: Fence, cores: tuple[int, ...], cpu_milli: int) -> None:
        taken = any(self._exclusive.get(core, fence) != fence for core in cores)
        if _is_whole(cpu_milli) and not taken and not self._shared:
            self._exclusive |= dict.fromkeys(cores, fence)
        elif cores:
            # An overallocated node shares cores; the owner of an exclusive core does not change.
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
