"""The activation of scores of pairs, as a request asks for it."""

import math

import pytest

from arl_gateway.compat.target import RewardTarget
from arl_gateway.compat.vllm_pairs import pair_scores
from arl_gateway.reward_services.service_directory import ServiceEntry
from arl_wire.scores import Score

LOGIT = math.log(0.8 / 0.2)


def target(kind: str, *, activation: bool | None = None) -> RewardTarget:
    options = {} if activation is None else {"activation": activation}
    service = ServiceEntry(name="s", kind=kind, options=options, is_anywhere=True, is_registered=True)
    return RewardTarget(service=service, task="t", trajectory=None, step=None)


@pytest.mark.parametrize(
    ("kind", "of_service", "of_request", "given", "expected"),
    [
        ("reranker", None, None, LOGIT, LOGIT),
        ("reranker", None, False, LOGIT, LOGIT),
        ("reranker", None, True, LOGIT, 0.8),
        ("reranker", True, True, 0.8, 0.8),
        ("reranker", True, False, 0.8, LOGIT),
        ("relevance", None, True, 0.8, 0.8),
    ],
)
def test_requested_activation_is_applied_to_rerankers(
    kind: str, of_service: bool | None, of_request: bool | None, given: float, expected: float
) -> None:
    [number] = pair_scores([Score(score=given)], target(kind, activation=of_service), of_request)
    assert number == pytest.approx(expected)
