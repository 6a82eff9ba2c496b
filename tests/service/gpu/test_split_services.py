"""Test a registered model that is larger than one device, through the manager and its rows."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from arl_gpu.models.loader import load
from support.conditions import eventually
from support.gpu import driving
from support.parallel import LIMIT_S, a_worker
from support.rows import Rows
from support.tiny_models import a_large_one, save

ITEMS = [{"token_ids": [5, 6, 7]}, {"token_ids": [10, 11, 12, 13, 14, 15, 16]}]
REGISTERED = "insert into services (name, kind, source, options) values ('large', 'logprobs', 'large', $1)"
HELD = {"payload": {"service": "large", "items": ITEMS}, "amounts": {"slots:large": 1}, "retries": 1}


async def test_split_model_scores_on_two_devices_after_a_worker_kill(rows: Rows, tmp_path: Path) -> None:
    save(tmp_path / "large", a_large_one(), seed=3)
    model = load({"kind": "logprobs", "directory": str(tmp_path / "large"), "options": {}})
    wanted = [entry["score"] for entry in model.score(ITEMS, model.weights.content).entries]
    workers = [a_worker(device_mib=6) for _ in range(2)]
    async with driving(rows, workers=workers, models=tmp_path, devices="2") as gpu:
        await rows.execute(REGISTERED, '{"tensor_parallel": 2}')
        await eventually(lambda: "large" in gpu.manager.reconciler.splits, timeout_s=LIMIT_S)
        action = await gpu.granted(**HELD)
        assert (await rows.until_state(action, "settled", timeout_s=LIMIT_S))["outcome"] == "ok"
        assert await gpu.scores(action) == pytest.approx(wanted, abs=1e-5)
        assert len(model.weights.content) > 6 << 20 > max(each.used_bytes for each in gpu.manager.dispatcher._devices)
        first, pid = (worker.pid for worker in workers)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        action = await gpu.granted(**HELD)
        await eventually(lambda: workers[1].order_lock.locked())
        os.kill(pid, signal.SIGKILL)
        assert (await rows.until_state(action, "queued"))["failures"] == 1
        # The number of the file where they met is soon another one's.
        others = [socket.socket() for _ in range(32)]
        again = await gpu.granted(**HELD)
        assert (await rows.until_state(again, "settled", timeout_s=LIMIT_S))["outcome"] == "ok"
        assert await gpu.scores(again) == pytest.approx(wanted, abs=1e-5)
        assert workers[0].pid == first, "it heard of the other one's end, and went on"
        for other in others:
            other.close()
    await asyncio.gather(*(worker.end() for worker in workers))
