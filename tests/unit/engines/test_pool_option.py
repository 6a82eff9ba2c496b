"""The option `--pool`."""

import pytest

from arl_engines.engine import PoolSpec
from arl_engines.pool_option import parse_pool


def test_pool_option_gives_limits_and_defaults() -> None:
    assert parse_pool("cpu:kind=cpu,min=1,max=4,cores=2") == PoolSpec(name="cpu", min_nodes=1, max_nodes=4, cores=2)
    assert parse_pool("cpu") == PoolSpec(name="cpu")
    given = parse_pool("big-1:min=0,max=9,cores=8,driver=simulated,target=10,cooldown=2.5,drain=60")
    assert (given.min_nodes, given.max_nodes, given.driver) == (0, 9, "simulated")
    assert (given.target_s, given.cooldown_s, given.drain_s) == (10.0, 2.5, 60.0)
    assert parse_pool("gpu:kind=gpu,min=2").is_fixed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the name must be"),
        ("CPU:min=1", "the name must be"),
        ("cpu:size=3", "'size=3' is not one of kind="),
        ("cpu:min", "'min' is not one of"),
        ("cpu:min=-1", "min must be a whole number from 0 to 500"),
        ("cpu:max=501", "max must be a whole number from 1 to 500"),
        ("cpu:min=3,max=2", "max must not be below min"),
        ("cpu:min=1,min=2", "min is given twice"),
        ("cpu:min=0,max=2", "min=0 needs cores"),
        ("cpu:kind=tpu", "kind must be one of cpu, gpu, api"),
        ("cpu:cooldown=soon", "cooldown must be a number of seconds"),
        ("cpu:target=nan", "target must be a number of seconds"),
        ("gpu:kind=gpu,min=1,max=2", "only pools of kind cpu scale"),
    ],
)
def test_wrong_pool_option_names_the_part(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="--pool") as error:
        parse_pool(text)
    assert problem in str(error.value)
