"""Places for those that follow outputs."""

import pytest

from arl_gateway.streaming.log_streams import StreamLimiter
from arl_wire.errors import Unavailable


def test_one_project_does_not_take_those_of_the_others() -> None:
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
