"""The verdict: runs the test against recorded outputs. No candidate code is in this environment, only data."""

import json
import sys

from codec import call_key, decode

request = json.loads(sys.stdin.read())
problem = request["problem"]
names = {"__name__": "test"}
exec(problem["prompt"] + "\n" + problem["test"], names)
answers = iter(zip(request["calls"], request["outputs"], strict=True))


class CandidateFailed(Exception):
    pass


def replay(*args, **kwargs):
    (recorded_args, recorded_kwargs), output = next(answers)
    if call_key(args, kwargs) != json.dumps([recorded_args, recorded_kwargs]):
        raise CandidateFailed("the test called with other arguments than recorded")
    if "error" in output:
        raise CandidateFailed(output["error"])
    for given, after in zip(args, decode(output["args"]), strict=True):
        adopt(given, after)
    return decode(output["result"])


def adopt(given, after):
    """What the candidate did to a mutable argument happens to the test's own."""
    if type(given) is list and type(after) is list:
        given[:] = after
    elif type(given) in (dict, set) and type(after) is type(given):
        given.clear()
        given.update(after)


try:
    names["check"](replay)
    passed = True
    reason = ""
except Exception as error:
    passed = False
    reason = type(error).__name__ + ": " + str(error)[:200]
print(json.dumps({"passed": passed, "reason": reason}))
