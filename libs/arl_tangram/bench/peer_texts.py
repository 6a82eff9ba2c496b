"""Pairs of texts of known length for a sentence encoder, the same ones whenever they are asked for."""

import math
from collections.abc import Mapping
from enum import StrEnum
from random import Random

__all__ = ["Lengths", "pair"]

MEDIAN = 26
MOST = 112
LEAST = 6
"""Fewer tokens would not make distinct texts."""
SIGMA = 0.6
"""One text in a hundred is cut to `MOST`."""
SPECIAL = 2
"""Tokens around every text."""
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
)
WORDS = _TEXT.split()
"""A token each."""


class Lengths(StrEnum):
    UNIFORM = "uniform"  # all have MEDIAN tokens
    MIXED = "mixed"  # lognormal


SEEDS: Mapping[Lengths, int] = {Lengths.UNIFORM: 1, Lengths.MIXED: 2}


def pair(lengths: Lengths, number: int) -> tuple[str, str]:
    """Text and reference of the item of that number; no two texts are alike, but by a rare chance."""
    random = Random(SEEDS[lengths] << 40 | number)
    return _text(lengths, random), _text(lengths, random)


def _text(lengths: Lengths, random: Random) -> str:
    tokens = MEDIAN
    if lengths is Lengths.MIXED:
        tokens = min(MOST, max(LEAST, round(random.lognormvariate(math.log(MEDIAN), SIGMA))))
    return " ".join(random.choices(WORDS, k=tokens - SPECIAL))
