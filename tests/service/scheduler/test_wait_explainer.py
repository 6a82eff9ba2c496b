"""Test that only the leader explains why actions wait, from its index."""

from uuid import uuid4

import pytest

from arl_core.domain.states import WaitReason
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.inquiry.wait_explainer import WaitExplainer
from arl_wire.errors import NotFound, Unavailable
from arl_wire.internal.scheduler import ExplainRequest
from support.conditions import eventually
from support.rows import rows_in
from support.scheduler import leading

POLICY = FirstComeFirstServed()


async def test_standby_is_unavailable_and_the_leader_explains(database: str) -> None:
    async with rows_in(database) as rows, leading(rows) as leader:
        await eventually(lambda: leader.view() is not None)
        action = await rows.action()
        async with leading(rows) as standby:
            with pytest.raises(Unavailable, match="does not lead"):
                await WaitExplainer(standby, POLICY).explain(ExplainRequest(id=action))
        await eventually(lambda: (view := leader.view()) is not None and view[0].queue_position(action) is not None)
        answer = await WaitExplainer(leader, POLICY).explain(ExplainRequest(id=action))
        assert (answer.node, answer.wait.reason) == (None, WaitReason.NO_NODE_FITS)
        with pytest.raises(NotFound):
            await WaitExplainer(leader, POLICY).explain(ExplainRequest(id=uuid4()))
