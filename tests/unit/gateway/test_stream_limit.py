"""Limits on the number of concurrent log streams."""

import pytest

from arl_gateway.streaming.log_streams import StreamLimiter
from arl_wire.errors import Unavailable


def test_project_cannot_use_stream_slots_of_other_projects() -> None:
    places = StreamLimiter(3, project_limit=2)
    leaves = [places.acquire(1), places.acquire(1)]
    with pytest.raises(Unavailable, match="this project already has 2 output streams"):
        places.acquire(1)
    leaves.append(places.acquire(2))
    with pytest.raises(Unavailable, match="this gateway already has 3 output streams"):
        places.acquire(2)
    for leave in leaves:
        leave()
        leave()
    assert places.active == 0
    places.acquire(1)
