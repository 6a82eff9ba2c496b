"""Run the code-reward functions of trainers, unmodified, against a running system.

`python code_rewards.py DIRECTORY ADDRESS KEY`: packages installed to the directory. Prints JSON.
"""

import importlib.util
import json
import sys
import threading
from pathlib import Path
from typing import Any

RIGHT = "```python\nprint(int(input()) * 2)\n```"
HALF = "```python\nn = int(input())\nprint(4 if n == 2 else 0)\n```"
BROKEN = "```python\nprint(int(input()) *\n```"
ENDLESS = "```python\nwhile True: pass\n```"
CASES = {"inputs": ["2\n", "21\n"], "outputs": ["4\n", "42\n"]}
FUNCTION = "```python\nclass Solution:\n    def double(self, n):\n        return [n, 2 * n]\n```"
CALLS = {"inputs": ["2", "3"], "outputs": ["[2, 4]", "[3, 6]"], "fn_name": "double"}


def package(directory: Path, name: str) -> Any:
    path = directory / name.replace(".", "/") / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked(directory: Path, address: str, key: str) -> dict[str, Any]:
    verl = package(directory, "verl.utils.reward_score.sandbox_fusion")
    url = f"http://key:{key}@{address}/t/verl/run_code"

    def scored(completion: str, cases: dict[str, Any]) -> list[Any]:
        score, said = verl.compute_score(url, threading.Semaphore(8), 256, completion, dict(cases), timeout=2)
        return [score, [each.get("status") for each in said]]

    found: dict[str, Any] = {
        "right": scored(RIGHT, CASES),
        "half": scored(HALF, CASES),
        "broken": scored(BROKEN, CASES),
        "endless": scored(ENDLESS, CASES),
        "function": scored(FUNCTION, CALLS),
    }
    sys.path.insert(0, str(directory))
    import sandbox_fusion

    request = sandbox_fusion.RunCodeRequest(code="print('said')", language="python")
    answer = sandbox_fusion.run_code(request, endpoint=f"http://key:{key}@{address}/t/sdk", max_attempts=1)
    found["sdk"] = [answer.status, answer.run_result.stdout]
    return found


if __name__ == "__main__":
    print(json.dumps(asked(Path(sys.argv[1]), sys.argv[2], sys.argv[3]), default=str))
