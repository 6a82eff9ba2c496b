"""Run the remote-reward code of trainers, unmodified, against a running system.

`python trainers.py DIRECTORY ADDRESS KEY`: packages installed to the directory without what they depend on. What a file
imports of that is put aside with names that do nothing: the code that is run here is none of it. Prints JSON.
"""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

PUT_ASIDE = ("ray", "omegaconf", "tensordict", "verl", "openrlhf", "miles", "torch", "numpy", "transformers")
PROMPT, RESPONSE, LABEL = "What is the capital of France? ", "It is Paris.", "Paris"


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in PUT_ASIDE:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock(name=name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def loaded(directory: Path, name: str) -> Any:
    path = directory / f"{name.replace('.', '/')}.py"
    path = path if path.is_file() else directory / name.replace(".", "/") / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def asked(directory: Path, address: str, key: str) -> dict[str, Any]:
    """Send rewards requests whose URLs carry all options, because these clients send nothing else."""
    found: dict[str, Any] = {}
    verl = loaded(directory, "verl.experimental.reward_loop.reward_loop").RewardLoopWorker
    for engine in ("vllm", "sglang"):
        worker = verl.__new__(verl)
        worker.reward_router_address = f"{key}@{address}/t/verl"
        worker.config = types.SimpleNamespace(
            reward=types.SimpleNamespace(
                reward_model=types.SimpleNamespace(
                    model_path="/models/skywork", rollout=types.SimpleNamespace(name=engine)
                )
            )
        )

        async def text(data: Any) -> str:
            return PROMPT + RESPONSE

        worker._preprocess_reward_inputs = text
        found[f"verl_{engine}"] = await worker.compute_score_disrm(None)
    openrlhf = loaded(directory, "openrlhf.utils.agent").SingleTurnAgentExecutor
    where = f"http://{key}@{address}/t/openrlhf/reward-services/minilm/get_reward"
    found["openrlhf"] = await openrlhf(where)._fetch_rewards_via_http([PROMPT + RESPONSE], [PROMPT], [LABEL])
    found["openrlhf_two"] = await openrlhf([where, where])._fetch_rewards_via_http(
        [PROMPT + RESPONSE], [PROMPT], [LABEL]
    )
    slime = loaded(directory, "miles.rollout.rm_hub")
    args = types.SimpleNamespace(rm_url=f"http://{key}@{address}/t/slime/reward-services/minilm/slime/reward")
    sample = types.SimpleNamespace(prompt=PROMPT, response=RESPONSE, label=LABEL)
    found["slime"] = await slime.remote_rm(args, sample)
    return found


if __name__ == "__main__":
    sys.meta_path.insert(0, Nothing())
    print(json.dumps(asyncio.run(asked(Path(sys.argv[1]), sys.argv[2], sys.argv[3])), default=str))
