"""One's own function as a service, by `module:callable`: an item's fields in, a number out.

It is code on the node, so the node's settings name it and no client can. It runs in the worker, which has one order at
a time; what it needs of a device is its own affair, and is not counted.
"""

import asyncio
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from arl_gpu.kept import Hold
from arl_gpu.kinds.model import Entry, Item, Loaded, Scored, failed
from arl_wire.checks import is_deep
from arl_wire.scores import MAX_DETAILS

__all__ = ["Own"]

Function = Callable[[Mapping[str, Any]], Any]
ITEM_S = 30.0
"""So long an asynchronous function may take for an item: all other services of the device wait for it meanwhile."""


@dataclass(slots=True)
class _NoWeights:
    """A place on a device has at least one byte."""

    content: memoryview = field(default_factory=lambda: memoryview(bytearray(1)))

    def keep(self, hold: Hold) -> None:
        """There is nothing to be kept."""


class Own:
    """Answers with what the function returns: a number, or a mapping with `score` and, if wanted, `details`."""

    backend = "python"

    def __init__(self, path: str, *, item_s: float = ITEM_S) -> None:
        """Raises `ValueError`, `ImportError` or `AttributeError` where there is no such callable."""
        module, _, name = path.partition(":")
        if not module or not name:
            raise ValueError(f"{path!r} is not module:callable")
        self._function: Function = getattr(import_module(module), name)
        self._item_s = item_s
        self.weights: Loaded = _NoWeights()

    def score(self, items: Sequence[Item], content: Any) -> Scored:
        """Of an asynchronous function, all items of a batch are awaited together."""
        begun, cpu = time.monotonic(), time.process_time()
        if inspect.iscoroutinefunction(self._function):
            entries = asyncio.run(_all(self._function, items, self._item_s))
        else:
            entries = [self._entry(item) for item in items]
        took, used = time.monotonic() - begun, time.process_time() - cpu
        return Scored(entries, len(items), 0, 0.0, used, took)

    def _entry(self, item: Item) -> Entry:
        try:
            return _read(self._function(dict(item)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises, its item hears of it and the others do not
            return _raised(error)


async def _all(
    function: Callable[[Mapping[str, Any]], Awaitable[Any]], items: Sequence[Item], item_s: float
) -> list[Entry]:
    return list(await asyncio.gather(*(_awaited(function(dict(item)), item_s) for item in items)))


async def _awaited(answering: Awaitable[Any], item_s: float) -> Entry:
    """`SystemExit` would end the loop and the worker."""
    try:
        async with asyncio.timeout(item_s) as limit:
            answer = await answering
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - as in `_entry`
        if isinstance(error, TimeoutError) and limit.expired():
            return failed("function_timeout", f"the function did not answer within {item_s:g} s")
        return _raised(error)
    return _read(answer)


def _read(answer: Any) -> Entry:
    said, details = (answer.get("score"), answer.get("details")) if isinstance(answer, Mapping) else (answer, None)
    # numpy's numbers are none of int and float, and have __float__; a text has not.
    if said is None or isinstance(said, str | bytes) or not hasattr(said, "__float__"):
        return failed("no_score", f"the function returned {type(answer).__name__} and no number")
    try:
        score = float(said)
    except OverflowError:
        score = math.inf
    except Exception as error:  # noqa: BLE001 - a number of the function's own making, which is its item's matter alone
        return _raised(error)
    if not math.isfinite(score):
        return failed("not_finite", "the function's answer is not a finite number")
    entry: Entry = {"score": score}
    if details is None:
        return entry
    try:
        is_small = isinstance(details, Mapping) and len(json.dumps(details, allow_nan=False)) <= MAX_DETAILS
        is_small = is_small and not is_deep(details)
    except (TypeError, ValueError, RecursionError):
        is_small = False
    return entry | {"details": dict(details)} if is_small else failed("bad_details", "its details are no small JSON")


def _raised(error: BaseException) -> Entry:
    return failed("function_failed", f"{type(error).__name__}: {str(error)[:500]}")
