"""Run untrusted code on recorded inputs. This environment contains no expected answer."""

import json

from codec import decode, encode

with open("request.json") as file:
    request = json.load(file)
names = {"__name__": "solution"}
exec(compile(request["solution"], "solution.py", "exec"), names)
candidate = names[request["entry_point"]]
outputs = []
for call in request["calls"]:
    args = [decode(value) for value in call["args"]]
    kwargs = {name: decode(value) for name, value in call["kwargs"].items()}
    try:
        result = candidate(*args, **kwargs)
        outputs.append({"result": encode(result), "after": [encode(value) for value in (*args, *kwargs.values())]})
    except Exception as error:
        outputs.append({"error": type(error).__name__})
with open("outputs.json", "w") as file:
    json.dump(outputs, file)
