"""Record the calls that the test makes, and the arguments that they change. No candidate code runs here."""

import contextlib
import json
import random
import sys

from codec import encode

with open("request.json") as file:
    problem = json.load(file)
reference_names = {"__name__": "reference"}
exec(problem["prompt"] + problem["canonical_solution"], reference_names)
reference = reference_names[problem["entry_point"]]
calls = []


def recorder(*args, **kwargs):
    given = [*args, *kwargs.values()]
    before = [encode(value) for value in given]
    try:
        return reference(*args, **kwargs)
    finally:
        after = [encode(value) for value in given]
        named = dict(zip(kwargs, before[len(args) :], strict=True))
        changed = [at for at, value in enumerate(after) if value != before[at]]
        calls.append({"args": before[: len(args)], "kwargs": named, "changed": changed})


names = {"__name__": "test"}
exec(problem["prompt"] + "\n" + problem["test"], names)
names[problem["entry_point"]] = recorder
random.seed(0)
with contextlib.redirect_stdout(sys.stderr):
    names["check"](recorder)
with open("calls.json", "w") as file:
    json.dump(calls, file)
