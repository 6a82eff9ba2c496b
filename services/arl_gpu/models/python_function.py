"""A user's function as a reward service, by `module:callable`: it gets an item's fields and returns a number.

The function is code on the node, so only the node's settings can name it. It runs in the worker, which executes one
order at a time. Device memory that it uses is not counted.
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

from arl_gpu.models.interface import Entry, Item, LoadableWeights, ModelOutput, error_entry
from arl_gpu.models.weight_buffer import AllocateFn
from arl_wire.scores import MAX_DETAILS_BYTES
from arl_wire.validation import is_too_deep

__all__ = ["PythonFunctionModel", "function_problems"]

ScoreFunction = Callable[[Mapping[str, Any]], Any]
ITEM_TIMEOUT_S = 30.0
"""Maximum seconds of an asynchronous function for an item; other services of the device wait in the meantime."""


@dataclass(slots=True)
class _EmptyWeights:
    """A buffer of one byte, the minimum size of a block on a device."""

    content: memoryview = field(default_factory=lambda: memoryview(bytearray(1)))

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Do nothing: a function has no weights."""


class PythonFunctionModel:
    """A model that calls a function, which returns a number, or a mapping with `score` and optional `details`."""

    backend = "python"

    def __init__(self, path: str, *, item_timeout_s: float = ITEM_TIMEOUT_S) -> None:
        """Import the function. Raises `ValueError`, `ImportError` or `AttributeError` if it is not found."""
        self._function = _import_function(path)
        self._item_timeout_s = item_timeout_s
        self.weights: LoadableWeights = _EmptyWeights()

    def score(self, items: Sequence[Item], content: Any) -> ModelOutput:
        """Score items. For an asynchronous function, all items of a batch are awaited concurrently."""
        begun, cpu = time.monotonic(), time.process_time()
        if inspect.iscoroutinefunction(self._function):
            entries = asyncio.run(_score_all(self._function, items, self._item_timeout_s))
        else:
            entries = [self._entry(item) for item in items]
        took, used = time.monotonic() - begun, time.process_time() - cpu
        return ModelOutput(entries, len(items), 0, 0.0, used, took)

    def _entry(self, item: Item) -> Entry:
        try:
            return _parse_result(self._function(dict(item)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception becomes the entry of its item, and other items continue
            return _exception_entry(error)


def function_problems(paths: Mapping[str, str]) -> list[str]:
    """Import each function, by the name of its service. Return a sentence for each that cannot be used."""
    problems = []
    for service, path in paths.items():
        try:
            _import_function(path)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything when it is imported
            problems.append(f"TANGRAM_REWARD_FUNCTIONS: {service}: cannot use {path}: {type(error).__name__}: {error}")
    return problems


def _import_function(path: str) -> ScoreFunction:
    """Import a function. Raises `ValueError`, `ImportError`, `AttributeError` or `TypeError`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} is not module:callable")
    function: ScoreFunction = getattr(import_module(module), name)
    if not callable(function):
        raise TypeError(f"{name} is no function")
    return function


async def _score_all(
    function: Callable[[Mapping[str, Any]], Awaitable[Any]], items: Sequence[Item], item_timeout_s: float
) -> list[Entry]:
    return list(await asyncio.gather(*(_await_score(function(dict(item)), item_timeout_s) for item in items)))


async def _await_score(pending_score: Awaitable[Any], item_timeout_s: float) -> Entry:
    """Await one item's score. `SystemExit` is caught, because it would end the loop and the worker."""
    try:
        async with asyncio.timeout(item_timeout_s) as limit:
            answer = await pending_score
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - see `_entry`
        if isinstance(error, TimeoutError) and limit.expired():
            return error_entry("function_timeout", f"the function did not return within {item_timeout_s:g} s")
        return _exception_entry(error)
    return _parse_result(answer)


def _parse_result(result: Any) -> Entry:
    said, details = (result.get("score"), result.get("details")) if isinstance(result, Mapping) else (result, None)
    # numpy's numbers are neither int nor float, but have `__float__`; a text does not.
    if said is None or isinstance(said, str | bytes) or not hasattr(said, "__float__"):
        return error_entry("no_score", f"the function returned {type(result).__name__} instead of a number")
    try:
        score = float(said)
    except OverflowError:
        score = math.inf
    except Exception as error:  # noqa: BLE001 - a user-defined number type can raise anything
        return _exception_entry(error)
    if not math.isfinite(score):
        return error_entry("not_finite", "the function's result is not a finite number")
    entry: Entry = {"score": score}
    if details is None:
        return entry
    try:
        is_small = isinstance(details, Mapping) and len(json.dumps(details, allow_nan=False)) <= MAX_DETAILS_BYTES
        is_small = is_small and not is_too_deep(details)
    except (TypeError, ValueError, RecursionError):
        is_small = False
    return (
        entry | {"details": dict(details)}
        if is_small
        else error_entry("bad_details", "the details of the function are not JSON of the allowed size")
    )


def _exception_entry(error: BaseException) -> Entry:
    return error_entry("function_failed", f"{type(error).__name__}: {str(error)[:500]}")
