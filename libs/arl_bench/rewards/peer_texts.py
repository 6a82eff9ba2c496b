"""Deterministic pairs of texts of known length for a sentence encoder."""

import math
from collections.abc import Mapping
from enum import StrEnum
from random import Random

__all__ = ["LengthDistribution", "text_pair"]

MEDIAN_TOKENS = 26
MAX_TOKENS = 112
MIN_TOKENS = 6
"""Minimum length; fewer tokens would not make distinct texts."""
LENGTH_SIGMA = 0.6
"""Sigma of the lognormal lengths: one text in a hundred is cut to `MAX_TOKENS`."""
SPECIAL_TOKENS = 2
"""Number of special tokens added to each text."""
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
)
WORDS = _VOCABULARY.split()
"""Words of one token each."""


class LengthDistribution(StrEnum):
    UNIFORM = "uniform"  # all have MEDIAN_TOKENS
    MIXED = "mixed"  # lognormal


SEEDS: Mapping[LengthDistribution, int] = {LengthDistribution.UNIFORM: 1, LengthDistribution.MIXED: 2}


def text_pair(lengths: LengthDistribution, number: int) -> tuple[str, str]:
    """Return text and reference of an item. Equal texts are very unlikely."""
    random = Random(SEEDS[lengths] << 40 | number)
    return _make_text(lengths, random), _make_text(lengths, random)


def _make_text(lengths: LengthDistribution, random: Random) -> str:
    tokens = MEDIAN_TOKENS
    if lengths is LengthDistribution.MIXED:
        tokens = min(MAX_TOKENS, max(MIN_TOKENS, round(random.lognormvariate(math.log(MEDIAN_TOKENS), LENGTH_SIGMA))))
    return " ".join(random.choices(WORDS, k=tokens - SPECIAL_TOKENS))
