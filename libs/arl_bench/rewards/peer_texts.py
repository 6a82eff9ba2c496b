"""Pairs of texts of known length for a sentence encoder, the same ones whenever they are asked for."""

import math
from collections.abc import Mapping
from enum import StrEnum
from random import Random

__all__ = ["LengthDistribution", "text_pair"]

MEDIAN_TOKENS = 26
MAX_TOKENS = 112
MIN_TOKENS = 6
"""Fewer tokens would not make distinct texts."""
LENGTH_SIGMA = 0.6
"""One text in a hundred is cut to `MOST`."""
SPECIAL_TOKENS = 2
"""Tokens around every text."""
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
)
WORDS = _VOCABULARY.split()
"""A token each."""


class LengthDistribution(StrEnum):
    UNIFORM = "uniform"  # all have MEDIAN tokens
    MIXED = "mixed"  # lognormal


SEEDS: Mapping[LengthDistribution, int] = {LengthDistribution.UNIFORM: 1, LengthDistribution.MIXED: 2}


def text_pair(lengths: LengthDistribution, number: int) -> tuple[str, str]:
    """Text and reference of the item of that number; no two texts are alike, but by a rare chance."""
    random = Random(SEEDS[lengths] << 40 | number)
    return _make_text(lengths, random), _make_text(lengths, random)


def _make_text(lengths: LengthDistribution, random: Random) -> str:
    tokens = MEDIAN_TOKENS
    if lengths is LengthDistribution.MIXED:
        tokens = min(MAX_TOKENS, max(MIN_TOKENS, round(random.lognormvariate(math.log(MEDIAN_TOKENS), LENGTH_SIGMA))))
    return " ".join(random.choices(WORDS, k=tokens - SPECIAL_TOKENS))
