"""The loop that puts batches together, where it can't go on."""

import asyncio
from uuid import uuid4

from arl_core.fence import Fence
from arl_gpu.jobs import Job, Report
from arl_gpu.metrics import GpuMetrics
from arl_gpu.scoring import Scoring
from arl_gpu.turns import Turns
from arl_kit.metrics import Metrics
from support.gpu import ScriptedWorker


async def test_scoring_that_has_ended_says_so_and_can_be_stopped() -> None:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reports: list[Report] = []
    turns = Turns(batch_tokens=16, begun_tokens=16)
    metrics = GpuMetrics(Metrics())
    scoring = Scoring([ScriptedWorker()], reports.append, failed=failed.set_result, turns=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    broken = Job(
        fence=Fence(uuid4(), 1), service="minilm", timeout_s=1.0, items=[{"text": "a", "reference": "b"}], costs=[]
    )
    scoring.add(broken)
    assert "scoring ended: " in await asyncio.wait_for(failed, 5)
    scoring.cancel([broken.fence])
    await scoring.stop()
    assert [report.outcome for report in reports] == ["cancelled"]
