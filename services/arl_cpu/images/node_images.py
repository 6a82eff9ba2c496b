"""The images of a node: requested pulls, progress, the disk budget and removals. Rows request, rows report."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from arl_core.images.pull_planning import PULLS_IMAGES, ImageFailure
from arl_cpu.contract.executor import NodeCapability
from arl_cpu.images import image_repository
from arl_cpu.images.pull_messages import ImagePulled, ImageResolved, PullFailure, PullProgress, PullRequest
from arl_cpu.images.pull_process import PullProcess, remove_from_store
from arl_cpu.images.store_state import StoreState, read_store
from arl_cpu.settings import CpuSettings
from arl_cpu.templates.template_store import TemplateStore
from arl_store.tx import PostgresStore

__all__ = ["NodeImages"]

PROGRESS_INTERVAL_S = 1.0
"""Seconds between two rows of progress of one pull."""
REMOVAL_GRACE_S = 2.0
"""Seconds between the removal of an image's row and that of its files. Grants of the last round arrive meanwhile."""
UNPACKED_FACTOR = 3
"""Assumed size of an unpacked layer in multiples of its compressed size."""

log = logging.getLogger(__name__)


class NodeImages:
    """The images of one node. Does nothing on a node that cannot use templates."""

    def __init__(self, store: PostgresStore, settings: CpuSettings, notify: Callable[[], None]) -> None:
        self._db, self._settings, self._notify = store, settings, notify
        self._store = TemplateStore(settings.templates_dir) if settings.templates_dir is not None else None
        self._is_enabled = False
        self._slots = asyncio.Semaphore(settings.image_pulls)
        self._room = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._node: dict[str, Any] = {}

    def capability(self, others: Sequence[NodeCapability]) -> NodeCapability:
        """Return whether this node pulls images, and enable it if so."""
        templates = next((each for each in others if each.name == "templates"), None)
        reason = ""
        if self._store is None:
            reason = "TANGRAM_TEMPLATES_DIR is not set"
        elif templates is None or templates.level == "absent":
            reason = templates.reason if templates is not None else "the driver runs no environments from templates"
        elif self._settings.images_mib == 0:
            reason = "TANGRAM_IMAGES_MIB is 0"
        self._is_enabled = not reason
        if reason:
            return NodeCapability(name=PULLS_IMAGES, level="absent", mechanism="", reason=reason)
        return NodeCapability(name=PULLS_IMAGES, level="enforced", mechanism="pulled from registries")

    async def start(self, *, node_id: int, epoch: UUID) -> None:
        """Report the images in the store. The first poll continues unfinished pulls."""
        self._node = {"node_id": node_id, "epoch": epoch}
        state = await asyncio.to_thread(self._read) if self._is_enabled else None
        async with self._db.write() as tx:
            known = await image_repository.list_images(tx, node_id=node_id)
            there = {image.name for image in state.images} if state is not None else set()
            gone = {row.name for row in known if row.state == "ready" and row.name not in there}
            if gone:
                await image_repository.remove_images(tx, gone, **self._node)
            for image in state.images if state is not None else ():
                await image_repository.record_ready(tx, image, **self._node)
            await image_repository.set_layers(tx, state.digests if state is not None else (), **self._node)

    async def stop(self) -> None:
        """End the pulls. A later process continues their downloads."""
        tasks = [*self._tasks.values(), *self._removals.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, requests: Sequence[Mapping[str, Any]]) -> bool:
        """Start the requested pulls and removals. Return True while there are any."""
        for request in requests if self._is_enabled else ():
            name, is_removal = request["name"], request["remove"]
            if name in self._tasks or name in self._removals:
                continue
            work = self._removals if is_removal else self._tasks
            task = asyncio.create_task(self._remove_requested(name) if is_removal else self._pull(name))
            work[name] = task
            task.add_done_callback(partial(_forget, work, name))
        return bool(self._tasks or self._removals)

    async def _pull(self, name: str) -> None:
        async with self._slots:
            if not await self._write(image_repository.begin_pull, name):
                return
            began = time.monotonic()
            try:
                failure = await self._run_pull(name, began)
            except OSError as error:
                failure = PullFailure(reason=ImageFailure.INTERRUPTED, message=f"the pull failed: {error}")
            if failure is not None:
                log.warning("image %s cannot be pulled (%s): %s", name, failure.reason, failure.message)
                about = {"reason": failure.reason.value, "message": failure.message}
                await self._write(image_repository.record_failure, name, **about)
            self._notify()

    async def _run_pull(self, name: str, began: float) -> PullFailure | None:
        settings = self._settings
        request = PullRequest(
            store=str(settings.templates_dir),
            image=name,
            registries=str(settings.registries_file) if settings.registries_file is not None else None,
            max_mib=settings.image_max_mib,
            max_members=settings.image_max_files,
            parallel=settings.image_layer_pulls,
            give_up_s=settings.image_give_up_s,
        )
        process = await PullProcess.start(request)
        reported = 0.0
        try:
            async for event in process.events():
                match event:
                    case ImageResolved():
                        if not await self._make_room(name, event.missing_bytes):
                            message = "images in use fill the budget of TANGRAM_IMAGES_MIB"
                            return PullFailure(reason=ImageFailure.STORE_FULL, message=message)
                        there = event.bytes - event.missing_bytes
                        about = {"digest": event.digest, "layers": event.layers, "bytes_done": there}
                        await self._write(image_repository.record_resolved, name, **about)
                        await process.proceed()
                    case PullProgress() if event.waiting or time.monotonic() - reported >= PROGRESS_INTERVAL_S:
                        reported = time.monotonic()
                        progress = {"bytes_done": event.bytes_done, "message": event.waiting}
                        await self._write(image_repository.record_progress, name, **progress)
                    case ImagePulled():
                        await self._record_pulled(name, time.monotonic() - began)
                    case PullFailure():
                        return event
        finally:
            await process.close()
        return None

    async def _record_pulled(self, name: str, pull_s: float) -> None:
        state = await asyncio.to_thread(self._read)
        async with self._db.write() as tx:
            for image in state.images:
                if image.name == name:
                    await image_repository.record_ready(tx, replace(image, pull_s=pull_s), **self._node)
            await image_repository.set_layers(tx, state.digests, **self._node)
        log.info("pulled image %s in %.1f s", name, pull_s)

    async def _make_room(self, name: str, missing_bytes: int) -> bool:
        """Remove the longest unused images if the budget demands it. Return False if those in use fill it."""
        if not missing_bytes:
            return True
        async with self._room:
            budget, needed = self._settings.images_mib << 20, missing_bytes * UNPACKED_FACTOR
            state = await asyncio.to_thread(self._read)
            if (excess := state.bytes + needed - budget) > 0 and self._store is not None:
                kept = {name, *self._tasks}
                names = await asyncio.to_thread(state.evictions, self._store, excess, kept=kept)
                await self._remove(names)
                state = await asyncio.to_thread(self._read)
            return state.bytes + missing_bytes <= budget

    async def _remove_requested(self, name: str) -> None:
        async with self._room:
            await self._remove([name])

    async def _remove(self, names: Sequence[str]) -> None:
        """Remove images: first their rows, then the files of those that no environment uses."""
        if not names or self._settings.templates_dir is None:
            return
        await self._write(image_repository.remove_images, names)
        self._notify()
        await asyncio.sleep(REMOVAL_GRACE_S)
        removed = await remove_from_store(self._settings.templates_dir, names)
        log.info("removed %d of %d images", len(removed), len(names))
        state = await asyncio.to_thread(self._read)
        async with self._db.write() as tx:
            for image in state.images:
                if image.name in names:  # an environment uses it
                    await image_repository.record_ready(tx, image, **self._node)
            await image_repository.set_layers(tx, state.digests, **self._node)
        self._notify()

    async def _write(self, statement: Callable[..., Awaitable[Any]], *arguments: Any, **values: Any) -> Any:
        async with self._db.write() as tx:
            return await statement(tx, *arguments, **values, **self._node)

    def _read(self) -> StoreState:
        if self._store is None:
            raise ValueError("TANGRAM_TEMPLATES_DIR must be set")
        self._store.create_directories()
        return read_store(self._store)


def _forget(work: dict[str, asyncio.Task[None]], name: str, task: asyncio.Task[None]) -> None:
    work.pop(name, None)
    with contextlib.suppress(asyncio.CancelledError):
        if (error := task.exception()) is not None:
            log.error("image %s could not be pulled or removed: %r; the next poll tries again", name, error)
