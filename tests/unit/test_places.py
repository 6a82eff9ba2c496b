"""Places for those that follow outputs."""

import pytest

from arl_gateway.places import Places
from arl_wire.errors import Unavailable


def test_one_project_does_not_take_those_of_the_others() -> None:
    places = Places(3, of_project=2)
    leaves = [places.take(1), places.take(1)]
    with pytest.raises(Unavailable, match="2 outputs of this project"):
        places.take(1)
    leaves.append(places.take(2))
    with pytest.raises(Unavailable, match="3 outputs are followed"):
        places.take(2)
    for leave in leaves:
        leave()
        leave()
    assert places.taken == 0
    places.take(1)
