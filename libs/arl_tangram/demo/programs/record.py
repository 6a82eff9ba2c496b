"""Which calls does the test make? Runs it against the reference solution; no candidate is near."""

import copy
import json
import sys

from codec import encode

problem = json.loads(sys.stdin.read())
names = {"__name__": "reference"}
exec(problem["prompt"] + problem["canonical_solution"] + "\n" + problem["test"], names)
reference = names[problem["entry_point"]]
calls = []


def recorder(*args, **kwargs):
    calls.append([encode(list(copy.deepcopy(args))), encode(copy.deepcopy(kwargs))])
    return reference(*args, **kwargs)


names["check"](recorder)
print(json.dumps(calls))
