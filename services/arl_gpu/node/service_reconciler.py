"""Reconciliation of the services that this node offers with the services that operators registered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from arl_gpu.catalog.registrations import (
    NO_ENGINES,
    DesiredService,
    InvalidRegistration,
    UnsupportedOnNode,
    resolve_service,
)
from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.dispatch.device_groups import device_groups
from arl_gpu.worker.client import WorkerDied
from arl_wire.reward_services.service import HEALTH_NOT_HERE

__all__ = ["ServiceOwner", "ServiceReconciler"]

log = logging.getLogger(__name__)

NOT_SHARDABLE = "not_split"
REFUSAL_CODES = (NOT_SHARDABLE, HEALTH_NOT_HERE, "bad_registration")

_ReconcileStep = Callable[[], Awaitable[None]]


class ServiceOwner(Protocol):
    """The owner of a device.

    Responses contain the device's state, or an `error`. `WorkerDied` means that no worker runs now.
    """

    async def offer(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Offer a new or changed service."""

    async def forget(self, name: str) -> dict[str, Any]:
        """Remove a service."""

    async def pin(self, name: str, *, on: bool) -> dict[str, Any]:
        """Pin or unpin a service."""

    async def restore(self, name: str) -> dict[str, Any]:
        """Load a service onto the device."""

    async def evict(self, name: str) -> dict[str, Any]:
        """Evict a service from the device."""


class ServiceReconciler:
    """A reconciler of offered and desired services.

    If a worker dies during a change, the change stays pending. A load is not repeated.
    """

    def __init__(
        self,
        files: Sequence[ServiceFiles],
        owners: Sequence[ServiceOwner],
        models: Path | None,
        *,
        on_response: Callable[[int, Mapping[str, Any]], None],
        is_idle: Callable[[str], bool],
        on_forgotten: Callable[[str], None] = lambda name: None,
        engines: Mapping[str, int] = NO_ENGINES,
        same_class_devices: int | None = None,
    ) -> None:
        """Initialise the reconciler.

        Args:
            files: The built-in services.
            owners: The owners of the devices, in the order of the devices.
            models: The directory that contains the sources of registered services.
            on_response: Called with a device's number and its owner's response.
            is_idle: Returns True if this node runs no action of the service.
            on_forgotten: Called with each service that was removed or replaced.
            engines: The device number of each engine, by engine name.
            same_class_devices: How many devices can compute a service together; by default all.
        """
        self._engines = engines
        self._same_class_devices = len(owners) if same_class_devices is None else same_class_devices
        self._built_in = {each.name: each for each in files}
        self._owners, self._models = owners, models
        self._on_response, self._is_idle, self._on_forgotten = on_response, is_idle, on_forgotten
        self._desired: dict[str, DesiredService] = {}
        self._reads_started = self._applied_read = 0
        """Number of reads that started, and number of the read whose result was applied."""
        self._offered = dict(self._built_in)
        self._splits: dict[str, int] = {}
        self._not_shardable: dict[str, ServiceFiles] = {}
        """Services that were refused because their models cannot be sharded."""
        self._pinned: set[str] = set()
        self._applied_drains: dict[str, float] = {}
        """Time of the last drain that was applied, by service."""
        self._applied_loads: dict[str, float] = {}
        self._offer_lock, self._move_lock = asyncio.Lock(), asyncio.Lock()
        self._errors: dict[str, str] = {}
        self._eviction_errors: dict[str, str] = {}
        """Error of the last eviction that failed, by service."""

    @property
    def health(self) -> Mapping[str, str]:
        """Last error of each service; healthy services are missing."""
        return self._errors | {name: what for name, what in self._eviction_errors.items() if self._is_drained(name)}

    @property
    def offered(self) -> Sequence[ServiceFiles]:
        """Return the offered services by name."""
        return [self._offered[name] for name in sorted(self._offered)]

    def is_offered(self, name: str, registered_at: float | None) -> bool:
        """Return True if the service is offered with this registration time. None means a built-in service."""
        files = self._offered.get(name)
        return files is not None and files.registered_at == registered_at

    @property
    def judges(self) -> Iterator[ServiceFiles]:
        """Services that an engine serves."""
        return (each for each in self._offered.values() if each.engine is not None)

    @property
    def refused(self) -> Sequence[DesiredService]:
        """Registered services that this node refuses; their health names the reason."""
        found = (wish for wish in self._desired.values() if wish.kind is not None and wish.name not in self._offered)
        return [wish for wish in found if self._errors.get(wish.name, "").startswith(REFUSAL_CODES)]

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of parts of each service that several devices compute together."""
        return self._splits

    def slots(self, slots_per_service: int) -> dict[str, int]:
        """Return the slots of each service. A drained service has none."""
        return {name: 0 if self._is_drained(name) else slots_per_service for name in self._offered}

    def begin_read(self) -> int:
        """Return the number of a new read. Call it before the desired services are read."""
        self._reads_started += 1
        return self._reads_started

    def set_desired(self, desired: Sequence[DesiredService], *, read: int) -> None:
        """Replace the desired services, unless a read that started later was already applied."""
        if read < self._applied_read:
            return
        self._applied_read = read
        self._desired = {wish.name: wish for wish in desired}
        self._applied_loads = {name: at for name, at in self._applied_loads.items() if name in self._desired}
        self._not_shardable = {name: files for name, files in self._not_shardable.items() if name in self._desired}
        known = self._desired.keys() | self._offered.keys()
        self._errors = {name: trouble for name, trouble in self._errors.items() if name in known}

    @property
    def has_pending_changes(self) -> bool:
        """Return True if a change is pending and no task is applying it."""
        if self._offer_lock.locked():
            return False
        if next(self._offer_steps(), None) is not None:
            return True
        return not self._move_lock.locked() and next(self._move_steps(), None) is not None

    async def apply_offers(self) -> None:
        """Offer registered services, forget removed ones and apply pins.

        This waits for the order that a device executes, but not for an engine that wakes up.
        """
        async with self._offer_lock:
            await _run_steps(self._offer_steps())

    async def apply_moves(self) -> None:
        """Load and evict services as desired. If another task is doing this, return; the next poll checks again."""
        if not self._move_lock.locked():
            async with self._move_lock:
                await _run_steps(self._move_steps())

    def _offer_steps(self) -> Iterator[_ReconcileStep]:
        wanted = self._desired_files()
        for name in sorted(self._offered.keys() - wanted.keys()):
            yield partial(self._forget, name)
        for name, files in sorted(wanted.items()):
            if self._offered.get(name) != files:
                yield partial(self._offer, files)
        for name in sorted(wanted):
            wish = self._desired.get(name)
            if (pinned := wish is not None and wish.pinned) != (name in self._pinned):
                yield partial(self._pin, name, on=pinned)

    def _move_steps(self) -> Iterator[_ReconcileStep]:
        for name, files in sorted(self._offered.items()):
            wish = self._desired.get(name)
            # The request can concern the next registration of this name, which is not offered yet.
            if wish is not None and files.registered_at == (wish.registered_at if wish.kind is not None else None):
                yield from self._service_move_steps(wish, files)

    def _desired_files(self) -> dict[str, ServiceFiles]:
        """Return the files of the desired services.

        A registered name hides the built-in service even if this node lacks its files: its actions are not for the
        built-in service.
        """
        registered = [wish for wish in self._desired.values() if wish.kind is not None]
        names = {wish.name for wish in registered}
        along = {name: files for name, files in self._built_in.items() if name not in names}
        found = {wish.name: files for wish in registered if (files := self._resolve(wish)) is not None}
        return along | {name: files for name, files in found.items() if self._not_shardable.get(name) != files}

    def _service_move_steps(self, desired: DesiredService, files: ServiceFiles) -> Iterator[_ReconcileStep]:
        """Yield the steps that evict the service from its device or load it."""
        name, drained_at, load_asked = desired.name, desired.drained_at, desired.load_asked
        if drained_at is not None and desired.is_eviction_desired:
            self._applied_loads[name] = drained_at
            if self._can_evict(files) and self._applied_drains.get(name) != drained_at:
                yield partial(self._evict, files, drained_at)
        elif load_asked is not None and self._applied_loads.get(name, -1.0) < load_asked:
            yield partial(self._load, files, load_asked)

    def _resolve(self, desired: DesiredService) -> ServiceFiles | None:
        """Resolve a registration. Return None if it is invalid, so that it does not block the others."""
        try:
            return resolve_service(desired, self._models, self._engines, devices=self._same_class_devices)
        except UnsupportedOnNode as error:
            if desired.name not in self._offered:
                self._not_shardable.pop(desired.name, None)
                self._record_refusal(desired, f"{HEALTH_NOT_HERE}: {error}")
        except InvalidRegistration as error:
            if self.is_offered(desired.name, desired.registered_at) and desired.name not in self._not_shardable:
                # It was readable before; its files may be in the middle of being written.
                return self._offered[desired.name]
            self._record_refusal(desired, f"bad_registration: {error}")
        return None

    def _record_refusal(self, desired: DesiredService, reason: str) -> None:
        if self._errors.get(desired.name) != reason:
            log.warning("service %s cannot be offered: %s", desired.name, reason)
        self._errors[desired.name] = reason

    async def _offer(self, files: ServiceFiles) -> None:
        before = self._offered.get(files.name)
        if before is not None and before.registered_at != files.registered_at:
            self._on_forgotten(files.name)
        if before is not None and (before.device, before.parallelism) != (files.device, files.parallelism):
            await self._forget(files.name)
        with self._record_worker_death(files.name):
            if files.name in self._pinned:  # the previous registration's pin may be on an engine
                await self._pin(files.name, on=False)
            for number, owner in self._owners_of(files):
                answer = await owner.offer(files.spec_for_device(number))
                if answer.get("error") == NOT_SHARDABLE:
                    await self._refuse(files, number, answer)
                    return
                self._handle_response(files.name, number, answer)
        self._offered[files.name] = files
        if files.parallelism > 1:
            self._splits[files.name] = files.parallelism

    async def _refuse(self, files: ServiceFiles, number: int, response: Mapping[str, Any]) -> None:
        """Refuse a service. The service that had its name before is forgotten too."""
        if files.name in self._offered:
            await self._forget(files.name)
        self._not_shardable[files.name] = files
        for _, owner in self._owners_of(files):
            with suppress(WorkerDied):
                await owner.forget(files.name)
        self._handle_response(files.name, number, response)

    async def _forget(self, name: str) -> None:
        """Stop offering a service, even if its weights cannot be freed."""
        files = self._offered.pop(name)
        for number, owner in self._owners_of(files):
            with suppress(WorkerDied):  # its weights were freed with it
                self._handle_response(name, number, await owner.forget(name))
        self._pinned.discard(name)
        for kept in (self._applied_drains, self._eviction_errors, self._errors, self._splits):
            kept.pop(name, None)
        self._on_forgotten(name)

    async def _pin(self, name: str, *, on: bool) -> None:
        for number, owner in self._owners_of(self._offered.get(name)):
            self._handle_response(name, number, await owner.pin(name, on=on))
        (self._pinned.add if on else self._pinned.discard)(name)

    async def _evict(self, files: ServiceFiles, drained_at: float) -> None:
        """Evict a drained service. If it is busy, the next poll tries again.

        Any other error is the service's health while it is drained; a new drain tries again.
        """
        name, trouble = files.name, list[Mapping[str, Any]]()
        for number, owner in self._owners_of(files):
            if not (self._is_current(files) and self._can_evict(files)):
                return
            answer = await owner.evict(name)
            self._on_response(number, answer)
            trouble += [answer] if "error" in answer else []
        if not self._is_current(files) or any(answer["error"] == "busy" for answer in trouble):
            return
        self._applied_drains[name] = drained_at
        self._eviction_errors.pop(name, None)
        if not trouble:
            self._errors.pop(name, None)
        else:
            self._eviction_errors[name] = f"{trouble[0]['error']}: {trouble[0]['message']}"

    async def _load(self, files: ServiceFiles, requested_at: float) -> None:
        """Load a service onto the first device or group that has room. On failure its health names the reason.

        A load during which the worker died is not repeated: it would kill the next worker too.
        """
        wish = self._desired.get(files.name)
        if not self._is_current(files) or (wish is not None and wish.is_eviction_desired):
            return
        self._applied_loads[files.name] = requested_at
        for group in self._groups_of(files):
            if not await self._load_onto(group, files):
                return

    async def _load_onto(self, group: Sequence[int], files: ServiceFiles) -> bool:
        """Load the service onto a group. Return True if a device had no room or reported another error."""
        for number in group:
            with self._record_worker_death(files.name):
                answer = await self._owners[number].restore(files.name)
            if not self._is_current(files):
                self._on_response(number, answer)
                return False
            self._handle_response(files.name, number, answer)
            if "error" in answer:
                return True
        return False

    def _is_current(self, files: ServiceFiles) -> bool:
        """Return True if this registration is still the offered one; it can change during an await."""
        return self._offered.get(files.name) is files

    @contextmanager
    def _record_worker_death(self, name: str) -> Iterator[None]:
        """Record a worker's death as the service's health, unless its registration changed in the meantime."""
        before = self._offered.get(name)
        try:
            yield
        except WorkerDied as error:
            if self._offered.get(name) is before:
                self._errors[name] = f"worker_died: {error}"
            raise

    def _owners_of(self, files: ServiceFiles | None) -> list[tuple[int, ServiceOwner]]:
        """Return the number and the owner of each device that the service can be on."""
        return [(number, self._owners[number]) for group in self._groups_of(files) for number in group]

    def _groups_of(self, files: ServiceFiles | None) -> list[Sequence[int]]:
        """Return the devices of each group that can compute the service. Without sharding, a group is one device."""
        if files is not None and files.device is not None:
            return [(files.device,)]
        return list(device_groups(len(self._owners), 1 if files is None else files.parallelism))

    def _can_evict(self, files: ServiceFiles) -> bool:
        """Return True if the service, and every service of the same engine, is idle and drained."""
        engine = files.engine
        beside = [each.name for each in self._offered.values() if engine is not None and each.engine == engine]
        return all(self._is_idle(each) and self._is_drained(each) for each in (files.name, *beside))

    def _is_drained(self, name: str) -> bool:
        return (wish := self._desired.get(name)) is not None and wish.drained_at is not None

    def _handle_response(self, name: str, number: int, response: Mapping[str, Any]) -> None:
        self._on_response(number, response)
        if "error" in response:
            self._errors[name] = f"{response['error']}: {response['message']}"
        else:
            self._errors.pop(name, None)


async def _run_steps(steps: Iterable[_ReconcileStep]) -> None:
    """Run the steps. If a worker dies, go on: the next worker knows its configuration, and the next poll retries."""
    for step in list(steps):
        try:
            await step()
        except WorkerDied as error:
            log.warning("a change of a service could not be applied: %s", error)
