"""Run untrusted code on recorded inputs. It sees no expected answer: there is none in this environment."""

import json
import sys

from codec import decode, encode

request = json.loads(sys.stdin.read())
names = {"__name__": "solution"}
exec(compile(request["solution"], "solution.py", "exec"), names)
candidate = names[request["entry_point"]]
outputs = []
for encoded_args, encoded_kwargs in request["calls"]:
    args, kwargs = decode(encoded_args), decode(encoded_kwargs)
    try:
        result = candidate(*args, **kwargs)
        outputs.append({"result": encode(result), "args": encode(args), "kwargs": encode(kwargs)})
    except Exception as error:
        outputs.append({"error": type(error).__name__})
with open("outputs.json", "w") as file:
    json.dump(outputs, file)
