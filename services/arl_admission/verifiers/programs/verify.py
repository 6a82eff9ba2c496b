"""Verifiable rewards in a sandbox: reads a request as JSON from standard input, writes an entry per item as JSON.

No text can make a verifier run forever: each item has a separate process and a time limit. Only the standard library is
needed, except for `math`, which needs `math-verify` among the packages of the `python3` that runs.
"""

import base64
import contextlib
import decimal
import importlib.util
import json
import os
import select
import signal
import sys
import time
import zlib

PACKAGES = "TANGRAM_VERIFIER_PACKAGES"
"""Variable with the directory of packages that the node adds to those of its `python3`."""
PACKAGES_PLACE = "/opt/tangram-packages"
"""The same directory where the sandbox has a file tree of its own."""
ITEM_S = 5.0
LARGEST_ANSWER = 1 << 16
STARTTIME = 22 - 3
"""Index of the start time, in ticks since boot, in the fields of proc(5) after the command's name. They begin at 3."""
CLOCK_BOOTTIME = 7
"""Linux's number; the module `time` names it from 3.7 on."""


class Unverifiable(Exception):
    """The item has no score. The arguments are a code and a sentence."""


class SentModules:
    """Imports modules whose source came with the request: the sandbox has no package of this project."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        """Return the specification of a module that was sent, or of a package above one."""
        is_package = any(each.startswith(name + ".") for each in self.sources)
        if name not in self.sources and not is_package:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=is_package)

    def create_module(self, spec):
        """Let the interpreter create the module."""

    def exec_module(self, module):
        """Run the source of a module. A package is empty."""
        name = module.__name__
        exec(compile(self.sources.get(name, ""), name.rpartition(".")[2] + ".py", "exec"), module.__dict__)


def exact(text, reference):
    """Return 1.0 if `text` equals the reference, apart from surrounding whitespace, else 0.0."""
    return float(text.strip() == reference.strip())


def regex(text, reference):
    """Return 1.0 if the reference as a regular expression matches the whole text, else 0.0."""
    import re

    try:
        pattern = re.compile(reference, re.DOTALL)
    except re.error as error:
        raise Unverifiable("bad_pattern", "reference is not a valid regular expression: %s" % error) from None
    return float(pattern.fullmatch(text.strip()) is not None)


def json_(text, reference):
    """Return 1.0 if `text` is JSON, with the same value as the reference if there is one, else 0.0."""
    try:
        said = _value(text)
    except ValueError:
        return 0.0
    if reference is None:
        return 1.0
    try:
        wanted = _value(reference)
    except ValueError:
        raise Unverifiable("bad_reference", "reference is not JSON") from None
    return float(_same(said, wanted))


def _value(text):
    """Return the value of a JSON text. Raises ValueError for other text, RecursionError for text nested too deeply."""
    return json.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=_no_constant)


def _integer(digits):
    # `int` refuses more than 4300 digits, with the same error as for text that is not JSON.
    return int(digits) if len(digits) < 4300 else decimal.Decimal(digits)


def _fraction(digits):
    near = float(digits)
    return near if 0 < abs(near) < float("inf") else decimal.Decimal(digits)


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def _same(said, wanted):
    """Return True if two JSON values are equal. 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(said, bool) or isinstance(wanted, bool):
        return said is wanted
    if isinstance(said, dict) and isinstance(wanted, dict):
        return said.keys() == wanted.keys() and all(_same(said[key], wanted[key]) for key in said)
    if isinstance(said, list) and isinstance(wanted, list):
        return len(said) == len(wanted) and all(map(_same, said, wanted))
    return said == wanted


def math(text, reference):
    """Return 1.0 if the last answer of `text` is what the reference says, else 0.0."""
    try:
        import math_verify
    except ImportError:
        raise Unverifiable(
            "verifier_missing", "the package math-verify is not installed for the node's python3"
        ) from None
    from arl_admission.verifiers.programs.expressions import Unreadable
    from arl_admission.verifiers.programs.grading import grade

    try:
        return float(grade(text, reference, math_verify))
    except Unreadable as error:
        raise Unverifiable("bad_reference", str(error)) from None


VERIFIERS = {"exact": exact, "regex": regex, "json": json_, "math": math}


def entry_of(kind, item):
    """Return the entry of one item: a score or an error."""
    try:
        return {"score": VERIFIERS[kind](item["text"], item.get("reference"))}
    except Unverifiable as error:
        return _error(*error.args)
    except Exception as error:
        return _error("verifier_failed", "%s: %s" % (type(error).__name__, str(error)[:500]))


def apart(kind, item, limit_s):
    """Verify an item in a separate process, killed at its time limit. If the process dies, there is no score."""
    if limit_s <= 0:
        return _error("no_time_left", "the action's time was used up before this item")
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.write(its, json.dumps(entry_of(kind, item)).encode()[:LARGEST_ANSWER])
        os._exit(0)
    os.close(its)
    try:
        ready, _, _ = select.select([ours], [], [], limit_s)
        content = os.read(ours, LARGEST_ANSWER) if ready else None
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if content is None:
        code = "verifier_timeout" if limit_s >= ITEM_S else "no_time_left"
        return _error(code, "the item was not verified within %g s" % limit_s)
    return (
        json.loads(content) if content else _error("verifier_failed", "the verifier of the item ended without a result")
    )


def prepare(kind):
    """Import slow modules before the processes of the items fork. Each process reports a missing module."""
    if kind == "math":
        with contextlib.suppress(Exception):
            import math_verify  # noqa: F401

            from arl_admission.verifiers.programs import grading  # noqa: F401


def age_s():
    """Return the seconds since this process began, or 0 if unknown. They count against the action's time.

    If a prepared interpreter was not ready in time and forked this process late, the interpreter's start is not
    included.
    """
    try:
        with open("/proc/self/stat") as stat:
            began = int(stat.read().rpartition(")")[2].split()[STARTTIME])
        now = time.clock_gettime(CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, now - began / os.sysconf("SC_CLK_TCK"))


def _error(code, message):
    return {"error": {"code": code, "message": message}}


def main():
    """Read the request, verify the items and write their entries."""
    request = json.load(sys.stdin)
    sys.path.extend([PACKAGES_PLACE, os.environ.get(PACKAGES, PACKAGES_PLACE)])
    if "modules" in request:
        sys.meta_path.insert(0, SentModules(json.loads(zlib.decompress(base64.b64decode(request["modules"])))))
    until = time.monotonic() - age_s() + request["within_s"]
    items, kind = request["items"], request["kind"]
    prepare(kind)
    entries = [apart(kind, item, min(ITEM_S, until - time.monotonic())) for item in items]
    sys.stdout.write(json.dumps(entries))
    sys.stdout.flush()
    sys.exit(0 if any("score" in entry for entry in entries) else 1)


if __name__ == "__main__":
    main()
