"""A trajectory's own tests: the solution's examples, then inputs derived from them, on all available cores.

The second part only checks that the same input gives the same answer twice. It takes `cpu_s` seconds of CPU time in
total, divided among its processes.
"""

import copy
import doctest
import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time

CALL_CPU_S = 0.05
EXAMPLES_CPU_S = 1.0


class TooSlow(BaseException):
    """A timeout. It is no `Exception`, so that a solution does not catch it by accident."""


def on_time(number, frame):
    raise TooSlow


def limited(function, seconds):
    """Return the result, the exception's name or "too slow". `seconds` limits the CPU time.

    The timer fires repeatedly, because doctest continues with the next example after an exception.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds)
    try:
        return repr(function())
    except TooSlow:
        return "too slow"
    except Exception as error:
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def examples_of(function, calls):
    """Run the docstring's examples and record the arguments of their calls."""

    def kept(*args):
        calls.append(copy.deepcopy(args))
        return function(*args)

    test = doctest.DocTestParser().get_doctest(function.__doc__ or "", {function.__name__: kept}, "examples", None, 0)
    runner = doctest.DocTestRunner()
    said = limited(lambda: runner.run(test).failed, EXAMPLES_CPU_S)
    return said == "0"


def changed(value, rng):
    """Return a random variation of a value."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.randint(-3, 3)
    if isinstance(value, str):
        return "".join(rng.sample(value, len(value))) + value[: rng.randint(0, 2)]
    if isinstance(value, list):
        return [changed(entry, rng) for entry in value for _ in range(rng.randint(0, 2))]
    return value


def answer(function, args):
    return limited(lambda: function(*copy.deepcopy(args)), CALL_CPU_S)


def search(function, calls, cpu_s, seed):
    """Exit with code 1 if an input has two different answers."""
    rng = random.Random(seed)
    ends_at = time.process_time() + cpu_s
    while time.process_time() < ends_at:
        args = [changed(value, rng) for value in rng.choice(calls)]
        first, second = answer(function, args), answer(function, args)
        if first != second and "too slow" not in (first, second):
            print(f"{function.__name__}{tuple(args)!r} gives {first}, then {second}")
            sys.exit(1)


def main():
    signal.signal(signal.SIGPROF, on_time)
    with open("request.json") as file:
        request = json.load(file)
    sys.path.insert(0, os.getcwd())
    function = getattr(importlib.import_module("solution"), request["entry_point"])
    calls = []
    if not examples_of(function, calls):
        sys.exit(1)
    if not calls:
        return
    workers = len(os.sched_getaffinity(0))
    share = request["cpu_s"] / workers
    if workers == 1:
        search(function, calls, share, 0)
        return
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=search, args=(function, calls, share, seed)) for seed in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit(1)


main()
