"""Verifiable rewards, in a sandbox: a request as JSON on standard input, an entry for each item on standard output.

Whatever a text makes a verifier do, it ends: each item has a process of its own, and so many seconds. Nothing but the
standard library is needed, except for `math`, which wants `math-verify` among the packages of the `python3` that runs.
"""

import contextlib
import decimal
import json
import os
import select
import signal
import sys
import time

ITEM_S = 5.0
LARGEST_ANSWER = 1 << 16
MOST_WORDS = 2
"""Of an answer in words, as `east` and `no solution`; what is longer is a sentence without one."""
STARTTIME = 22 - 3
"""Of proc(5)'s fields, of which the third is the first behind the command's name. In ticks since the machine's boot."""
CLOCK_BOOTTIME = 7
"""Linux's number; the module `time` names it from 3.7 on."""


class Unverifiable(Exception):
    """There is no score: a code and a sentence."""


def exact(text, reference):
    return float(text.strip() == reference.strip())


def regex(text, reference):
    import re

    try:
        pattern = re.compile(reference, re.DOTALL)
    except re.error as error:
        raise Unverifiable("bad_pattern", "reference is no regular expression: %s" % error) from None
    return float(pattern.fullmatch(text.strip()) is not None)


def json_(text, reference):
    """Whether it is JSON, and the same value where there is a reference."""
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
    """Raises ValueError for what is not JSON, and RecursionError for what is nested too deep to tell."""
    return json.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=_no_constant)


def _integer(digits):
    # `int` refuses more than 4300 digits, with the error of what is no JSON.
    return int(digits) if len(digits) < 4300 else decimal.Decimal(digits)


def _fraction(digits):
    near = float(digits)
    return near if 0 < abs(near) < float("inf") else decimal.Decimal(digits)


def _no_constant(name):
    raise ValueError("%s is not JSON" % name)


def _same(said, wanted):
    """1 and 1.0 are one number, and 1 and true are not the same."""
    if isinstance(said, bool) or isinstance(wanted, bool):
        return said is wanted
    if isinstance(said, dict) and isinstance(wanted, dict):
        return said.keys() == wanted.keys() and all(_same(said[key], wanted[key]) for key in said)
    if isinstance(said, list) and isinstance(wanted, list):
        return len(said) == len(wanted) and all(map(_same, said, wanted))
    return said == wanted


def math(text, reference):
    try:
        from math_verify import parse, verify
    except ImportError:
        raise Unverifiable("verifier_missing", "the node's python3 has no package math-verify") from None
    # This process's end is the limit. What it fails at is no wrong answer.
    wanted = _reference(parse, reference.strip())
    if not wanted:
        raise Unverifiable("bad_reference", "reference has no answer that can be read")
    said = parse(text, parsing_timeout=None, raise_on_error=True)
    return float(verify(wanted, said, timeout_seconds=None, raise_on_error=True))


def _reference(parse, text):
    """Answers of datasets are plain LaTeX, of which the library reads no more than a number: `10` of `10\\pi`.

    What says where its answer is, and a sentence without LaTeX, is read as it is.
    """
    import re

    def read(given):
        return parse(given, parsing_timeout=None, raise_on_error=True)

    if any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed", "####")):
        return read(text)
    answer = re.sub(r"^[A-Za-z ]+:", "", text).strip().rstrip(".")
    has_words = re.search(r"(?<![\\A-Za-z])[A-Za-z]{2}", re.sub(r"\\[A-Za-z]+\s*(\{[^{}]*\})?", "", answer))
    boxed = read("\\boxed{%s}" % answer)
    is_read = any(not isinstance(each, str) for each in boxed)
    if has_words and "\\" not in answer:
        return read(answer) or (boxed if len(answer.split()) <= MOST_WORDS else [])
    return boxed if is_read else read(answer) or boxed


VERIFIERS = {"exact": exact, "regex": regex, "json": json_, "math": math}


def entry_of(kind, item):
    try:
        return {"score": VERIFIERS[kind](item["text"], item.get("reference"))}
    except Unverifiable as error:
        return _error(*error.args)
    except Exception as error:
        return _error("verifier_failed", "%s: %s" % (type(error).__name__, str(error)[:500]))


def apart(kind, item, limit_s):
    """By a process of its own, which is killed when its time is over. What it dies of is no score."""
    if limit_s <= 0:
        return _error("no_time_left", "the action's time was over before this item")
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
        return _error(code, "it was not verified within %g s" % limit_s)
    return json.loads(content) if content else _error("verifier_failed", "its verifier ended without an answer")


def prepare(kind):
    """The processes of the items have from this one what takes long to import. Each says what it lacks."""
    if kind == "math":
        with contextlib.suppress(Exception):
            import math_verify  # noqa: F401


def age_s():
    """Since this process began, or 0 where nobody says. The action's time has passed since then, also while it started.

    Forked by an interpreter that was to stand ready and was late, it does not know of that one's start.
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
    request = json.load(sys.stdin)
    until = time.monotonic() - age_s() + request["within_s"]
    items, kind = request["items"], request["kind"]
    prepare(kind)
    entries = [apart(kind, item, min(ITEM_S, until - time.monotonic())) for item in items]
    sys.stdout.write(json.dumps(entries))
    sys.stdout.flush()
    sys.exit(0 if any("score" in entry for entry in entries) else 1)


if __name__ == "__main__":
    main()
