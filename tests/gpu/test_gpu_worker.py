"""A worker on a GPU. Skipped where there is none."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from arl_gpu.models.loader import load
from arl_gpu.worker.client import WorkerClient, WorkerDied
from arl_gpu.worker.host_memory import HostMemory
from support.parallel import a_worker
from support.tiny_models import a_large_one, save

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

ITEMS = [{"token_ids": [5, 6, 7]}, {"token_ids": [10, 11, 12, 13, 14, 15, 16]}]
UNUSABLE = """
import torch
from arl_gpu.models.hugging_face import LogprobsModel
score = LogprobsModel.score
def read_outside(model, items, content):
    if len(items) == 1:
        content[torch.tensor([len(content)], device=content.device)].cpu()
    return score(model, items, content)
LogprobsModel.score = read_outside
"""


def a_gpu_worker(directory: Path, host: HostMemory, before: str = "") -> WorkerClient:
    spec = {"kind": "logprobs", "directory": str(directory), "options": {}}
    services = {name: spec | {"name": name} for name in "ab"}
    return a_worker(device="cuda:0", device_mib=1, services=services, host=host, before=before)


async def test_gpu_worker_after_kill_or_device_error_restarts_and_scores_like_cpu(
    tmp_path: Path,
) -> None:
    save(tmp_path, a_large_one(), seed=3)
    model = load({"kind": "logprobs", "directory": str(tmp_path), "options": {}})
    wanted = [entry["score"] for entry in model.score(ITEMS, model.weights.content).entries]
    host = HostMemory()
    worker = a_gpu_worker(tmp_path, host, UNUSABLE)
    for end in ("killed", "unusable", "alive"):
        for name in "ab":
            answer = await worker.score(name, ITEMS, ["b"])
            assert "error" not in answer, answer
            assert [entry["score"] for entry in answer["entries"]] == pytest.approx(wanted, abs=1e-4)
            assert (answer["backend"], answer["states"]["a"]) == ("torch", "resident")
        await worker.evict("a")
        if end == "killed":
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        elif end == "unusable":
            with pytest.raises(WorkerDied):
                await worker.score("b", ITEMS[:1])
    await worker.end()
    await host.release_unmapped()
    assert host.reserved_bytes == 0
    host.close()
