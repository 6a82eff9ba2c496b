"""Which services this node offers, and what operators wish of them, carried out on the workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from arl_gpu.groups import groups_of
from arl_gpu.registrations import NO_ENGINES, BadRegistration, NotHere, Wish, registered
from arl_gpu.services import ServiceFiles
from arl_gpu.worker_client import WorkerDied
from arl_wire.services import NOT_HERE

__all__ = ["Owner", "Registry"]

log = logging.getLogger(__name__)

NOT_SPLIT = "not_split"
REFUSED = (NOT_SPLIT, NOT_HERE, "bad_registration")

_Step = Callable[[], Awaitable[None]]


class Owner(Protocol):
    """Of a device. Answers say what is on it, or have an `error`; `WorkerDied` says that there is none now."""

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]: ...
    async def forget(self, name: str) -> dict[str, Any]: ...
    async def pin(self, name: str, *, on: bool) -> dict[str, Any]: ...
    async def restore(self, name: str) -> dict[str, Any]: ...
    async def evict(self, name: str) -> dict[str, Any]: ...


class Registry:
    """What is offered now follows the wishes. What a worker died under is not carried out yet, but for loads."""

    def __init__(
        self,
        files: Sequence[ServiceFiles],
        owners: Sequence[Owner],
        models: Path | None,
        *,
        learn: Callable[[int, Mapping[str, Any]], None],
        is_idle: Callable[[str], bool],
        forgotten: Callable[[str], None] = lambda name: None,
        engines: Mapping[str, int] = NO_ENGINES,
        alike: int | None = None,
    ) -> None:
        """`learn` is told what is on a device; `is_idle` says that no action of a service is on this node; `forgotten`
        is told what is not offered any more, or not as it was.

        `engines`: the numbers of their devices, by name. `alike`: how many devices may compute a service together;
        all, where nothing is said.
        """
        self._engines = engines
        self._alike = len(owners) if alike is None else alike
        self._along = {each.name: each for each in files}
        self._owners, self._models = owners, models
        self._learn, self._is_idle, self._forgotten = learn, is_idle, forgotten
        self._wishes: dict[str, Wish] = {}
        self._reads = self._taken = 0
        """How often the wishes were read, and which of these reads is the one that is known."""
        self._offered = dict(self._along)
        self._splits: dict[str, int] = {}
        self._not_split: dict[str, ServiceFiles] = {}
        """What was not offered because it can't be split."""
        self._pinned: set[str] = set()
        self._evicted: dict[str, float] = {}
        """Which drain of it was carried out."""
        self._loaded: dict[str, float] = {}
        self._offering, self._moving = asyncio.Lock(), asyncio.Lock()
        self._troubles: dict[str, str] = {}
        self._stays: dict[str, str] = {}
        """What was to leave its device and did not, with what went wrong."""

    @property
    def health(self) -> Mapping[str, str]:
        """What went wrong with the last wish, by service; those that are well are not in it."""
        return self._troubles | {name: what for name, what in self._stays.items() if self._is_drained(name)}

    @property
    def offered(self) -> Sequence[ServiceFiles]:
        return [self._offered[name] for name in sorted(self._offered)]

    def offers(self, name: str, registered_at: float | None) -> bool:
        """This service, and not another one that had its name before. None: one that comes along."""
        files = self._offered.get(name)
        return files is not None and files.registered_at == registered_at

    @property
    def judges(self) -> Iterator[ServiceFiles]:
        """Those that an engine serves."""
        return (each for each in self._offered.values() if each.engine is not None)

    @property
    def refused(self) -> Sequence[Wish]:
        """What is registered and can't be offered here, for the reason that is its health."""
        found = (wish for wish in self._wishes.values() if wish.kind is not None and wish.name not in self._offered)
        return [wish for wish in found if self._troubles.get(wish.name, "").startswith(REFUSED)]

    @property
    def splits(self) -> Mapping[str, int]:
        """In how many parts those are that several devices compute together."""
        return self._splits

    def slots(self, each: int) -> dict[str, int]:
        """One that is drained takes nothing new."""
        return {name: 0 if self._is_drained(name) else each for name in self._offered}

    def next_read(self) -> int:
        """To be asked for before the wishes are read, and told with what was read."""
        self._reads += 1
        return self._reads

    def wished(self, wishes: Sequence[Wish], *, read: int) -> None:
        """What began to be read before something that is known already may be older than that, and is dropped."""
        if read < self._taken:
            return
        self._taken = read
        self._wishes = {wish.name: wish for wish in wishes}
        self._loaded = {name: at for name, at in self._loaded.items() if name in self._wishes}
        self._not_split = {name: files for name, files in self._not_split.items() if name in self._wishes}
        known = self._wishes.keys() | self._offered.keys()
        self._troubles = {name: trouble for name, trouble in self._troubles.items() if name in known}

    @property
    def is_behind(self) -> bool:
        """Something is to be carried out, and nobody does that now."""
        if self._offering.locked():
            return False
        if next(self._to_offer(), None) is not None:
            return True
        return not self._moving.locked() and next(self._to_move(), None) is not None

    async def offer_all(self) -> None:
        """What is registered is offered, what is not is forgotten, and pins follow.

        That waits for the order that a device carries out, and for no engine that wakes up meanwhile.
        """
        async with self._offering:
            await _do(self._to_offer())

    async def move_all(self) -> None:
        """What is to be on a device or off it; where somebody sees to that already, the next poll looks again."""
        if not self._moving.locked():
            async with self._moving:
                await _do(self._to_move())

    def _to_offer(self) -> Iterator[_Step]:
        wanted = self._wanted()
        for name in sorted(self._offered.keys() - wanted.keys()):
            yield partial(self._forget, name)
        for name, files in sorted(wanted.items()):
            if self._offered.get(name) != files:
                yield partial(self._offer, files)
        for name in sorted(wanted):
            wish = self._wishes.get(name)
            if (pinned := wish is not None and wish.pinned) != (name in self._pinned):
                yield partial(self._pin, name, on=pinned)

    def _to_move(self) -> Iterator[_Step]:
        for name, files in sorted(self._offered.items()):
            wish = self._wishes.get(name)
            # It may be about what has this name next, and is not offered yet.
            if wish is not None and files.registered_at == (wish.registered_at if wish.kind is not None else None):
                yield from self._moves(wish, files)

    def _wanted(self) -> dict[str, ServiceFiles]:
        """What is registered has its name also where it isn't here: an action of it is not for what comes along."""
        registered = [wish for wish in self._wishes.values() if wish.kind is not None]
        names = {wish.name for wish in registered}
        along = {name: files for name, files in self._along.items() if name not in names}
        found = {wish.name: files for wish in registered if (files := self._registered(wish)) is not None}
        return along | {name: files for name, files in found.items() if self._not_split.get(name) != files}

    def _moves(self, wish: Wish, files: ServiceFiles) -> Iterator[_Step]:
        """Off the device or onto it."""
        name, drained_at, load_asked = wish.name, wish.drained_at, wish.load_asked
        if drained_at is not None and wish.is_to_leave:
            self._loaded[name] = drained_at
            if self._may_leave(files) and self._evicted.get(name) != drained_at:
                yield partial(self._evict, files, drained_at)
        elif load_asked is not None and self._loaded.get(name, -1.0) < load_asked:
            yield partial(self._load, files, load_asked)

    def _registered(self, wish: Wish) -> ServiceFiles | None:
        """None also where it can't be understood: one bad registration is no matter of the others'."""
        try:
            return registered(wish, self._models, self._engines, devices=self._alike)
        except NotHere as error:
            if wish.name not in self._offered:
                self._not_split.pop(wish.name, None)
                self._is_refused(wish, f"{NOT_HERE}: {error}")
        except BadRegistration as error:
            if self.offers(wish.name, wish.registered_at) and wish.name not in self._not_split:
                # It was read once. What can't be read now may be in the middle of being written.
                return self._offered[wish.name]
            self._is_refused(wish, f"bad_registration: {error}")
        return None

    def _is_refused(self, wish: Wish, why: str) -> None:
        if self._troubles.get(wish.name) != why:
            log.warning("%s can't be offered: %s", wish.name, why)
        self._troubles[wish.name] = why

    async def _offer(self, files: ServiceFiles) -> None:
        before = self._offered.get(files.name)
        if before is not None and before.registered_at != files.registered_at:
            self._forgotten(files.name)
        if before is not None and (before.device, before.parallel) != (files.device, files.parallel):
            await self._forget(files.name)
        with self._blamed(files.name):
            if files.name in self._pinned:  # of what it was, which may be an engine that stays
                await self._pin(files.name, on=False)
            for number, owner in self._owners_of(files):
                answer = await owner.offer(files.spec_on(number))
                if answer.get("error") == NOT_SPLIT:
                    await self._refuse(files, number, answer)
                    return
                self._heard(files.name, number, answer)
        self._offered[files.name] = files
        if files.parallel > 1:
            self._splits[files.name] = files.parallel

    async def _refuse(self, files: ServiceFiles, number: int, answer: Mapping[str, Any]) -> None:
        """Neither it nor what had its name before is offered."""
        if files.name in self._offered:
            await self._forget(files.name)
        self._not_split[files.name] = files
        for _, owner in self._owners_of(files):
            with suppress(WorkerDied):
                await owner.forget(files.name)
        self._heard(files.name, number, answer)

    async def _forget(self, name: str) -> None:
        """It takes nothing more, whatever becomes of its weights."""
        files = self._offered.pop(name)
        for number, owner in self._owners_of(files):
            with suppress(WorkerDied):  # what it had ended with it
                self._heard(name, number, await owner.forget(name))
        self._pinned.discard(name)
        for kept in (self._evicted, self._stays, self._troubles, self._splits):
            kept.pop(name, None)
        self._forgotten(name)

    async def _pin(self, name: str, *, on: bool) -> None:
        for number, owner in self._owners_of(self._offered.get(name)):
            self._heard(name, number, await owner.pin(name, on=on))
        (self._pinned.add if on else self._pinned.discard)(name)

    async def _evict(self, files: ServiceFiles, drained_at: float) -> None:
        """What is in use is asked again. Trouble is its health as long as it is drained; a new drain tries again."""
        name, trouble = files.name, list[Mapping[str, Any]]()
        for number, owner in self._owners_of(files):
            if not (self._is_still(files) and self._may_leave(files)):
                return
            answer = await owner.evict(name)
            self._learn(number, answer)
            trouble += [answer] if "error" in answer else []
        if not self._is_still(files) or any(answer["error"] == "busy" for answer in trouble):
            return
        self._evicted[name] = drained_at
        self._stays.pop(name, None)
        if not trouble:
            self._troubles.pop(name, None)
        else:
            self._stays[name] = f"{trouble[0]['error']}: {trouble[0]['message']}"

    async def _load(self, files: ServiceFiles, at: float) -> None:
        """Onto the first device, or the first devices together, that have room. Where it fails, its health says why.

        One that its worker dies of is not asked for again: it would end the next worker, too.
        """
        wish = self._wishes.get(files.name)
        if not self._is_still(files) or (wish is not None and wish.is_to_leave):
            return
        self._loaded[files.name] = at
        for group in self._groups_of(files):
            if not await self._load_onto(group, files):
                return

    async def _load_onto(self, group: Sequence[int], files: ServiceFiles) -> bool:
        """Whether there was no room, or other trouble, on one of them."""
        for number in group:
            with self._blamed(files.name):
                answer = await self._owners[number].restore(files.name)
            if not self._is_still(files):
                self._learn(number, answer)
                return False
            self._heard(files.name, number, answer)
            if "error" in answer:
                return True
        return False

    def _is_still(self, files: ServiceFiles) -> bool:
        """While something was waited for, its name may have become another's, or nobody's."""
        return self._offered.get(files.name) is files

    @contextmanager
    def _blamed(self, name: str) -> Iterator[None]:
        """What a worker died under is the service's health, and not that of what has its name since."""
        before = self._offered.get(name)
        try:
            yield
        except WorkerDied as error:
            if self._offered.get(name) is before:
                self._troubles[name] = f"worker_died: {error}"
            raise

    def _owners_of(self, files: ServiceFiles | None) -> list[tuple[int, Owner]]:
        """Of the devices that it may be on, with their numbers."""
        return [(number, self._owners[number]) for group in self._groups_of(files) for number in group]

    def _groups_of(self, files: ServiceFiles | None) -> list[Sequence[int]]:
        """Numbers of the devices that may compute it together, or each by itself."""
        if files is not None and files.device is not None:
            return [(files.device,)]
        return list(groups_of(len(self._owners), 1 if files is None else files.parallel))

    def _may_leave(self, files: ServiceFiles) -> bool:
        """Idle and drained, and so is whatever else its engine serves."""
        engine = files.engine
        beside = [each.name for each in self._offered.values() if engine is not None and each.engine == engine]
        return all(self._is_idle(each) and self._is_drained(each) for each in (files.name, *beside))

    def _is_drained(self, name: str) -> bool:
        return (wish := self._wishes.get(name)) is not None and wish.drained_at is not None

    def _heard(self, name: str, number: int, answer: Mapping[str, Any]) -> None:
        self._learn(number, answer)
        if "error" in answer:
            self._troubles[name] = f"{answer['error']}: {answer['message']}"
        else:
            self._troubles.pop(name, None)


async def _do(missing: Iterable[_Step]) -> None:
    """What a dead worker had is known to the next one, and the poll comes again."""
    for step in list(missing):
        try:
            await step()
        except WorkerDied as error:
            log.warning("a wish was not carried out: %s", error)
