"""Comparison of the values of two expressions: exact numbers, functions and decimals that stand for a number."""

import re

import sympy
from sympy import Integer, Rational

DIGITS = 60
TOLERANCE = sympy.Float("1e-40", DIGITS)
"""Relative difference of two constants at `DIGITS` digits below which they are one number."""
SURE_PLACES = 6
"""Digits that a decimal needs, at least, to stand for a number that it only approximates."""
DECIMAL = re.compile(r"([+-]?)(\d+\.\d*|\.\d+)")


def same_value(wanted, said):
    """Return True if two expressions are the same number, or the same function wherever both have real values."""
    if wanted == said:
        return True
    if wanted.is_Rational and said.is_Rational:
        return False
    if wanted.has(sympy.oo) or said.has(sympy.oo):
        return False
    symbols = sorted(wanted.free_symbols | said.free_symbols, key=str)
    if not symbols:
        return _near(_evaluated(wanted, {}), _evaluated(said, {}))
    if wanted.free_symbols != said.free_symbols:
        wanted, said = sympy.simplify(wanted), sympy.simplify(said)
    if _agree(wanted, said, [_point(symbols, at) for at in range(12)]):
        return True
    is_counted = all(str(each) in ("n", "k", "m") for each in symbols)
    integers = [{each: Integer(at + 2 * place) for place, each in enumerate(symbols)} for at in range(1, 9)]
    return is_counted and _agree(wanted, said, integers)


def proportional(wanted, said):
    """Return True if one expression is a constant multiple of the other, as both sides of equal equations are."""
    if wanted.is_zero or said.is_zero:
        return bool(wanted.is_zero and said.is_zero)
    symbols = sorted(wanted.free_symbols | said.free_symbols, key=str)
    if not symbols or wanted.free_symbols != said.free_symbols:
        return False
    ratio = None
    for at in range(12):
        point = _point(symbols, at)
        here, there = _evaluated(wanted, point), _evaluated(said, point)
        if here is None or there is None or not here.is_real or not there.is_real:
            continue
        if here == 0 or there == 0:
            return False
        if ratio is not None and not _near(ratio, here / there):
            return False
        ratio = here / there
    return ratio is not None


def stands_for(decimal, value):
    """Return True if a decimal such as `4.358899` is the rounded value, with digits enough to be no accident."""
    match = DECIMAL.fullmatch(decimal)
    if match is None or not value.is_number:
        return False
    places = len(match.group(2).partition(".")[2])
    digits = len(match.group(2).replace(".", "").lstrip("0"))
    number = Rational(decimal)
    if places < SURE_PLACES or digits < SURE_PLACES or (value.is_Rational and 10**places % value.q == 0):
        return False
    exact = _evaluated(value, {})
    if exact is None or not exact.is_real:
        return False
    unit = Rational(1, 10**places)
    return bool(abs(exact - number) <= (unit if digits > SURE_PLACES else unit / 2))


def _point(symbols, at):
    """Return values of symbols. Half of the points have negative values, so that `|x|` differs from `x`."""
    signs = [1 if at < 4 or (at >> place % 4) & 1 else -1 for place in range(len(symbols))]
    return {
        each: signs[place] * (Rational(7 * at + 3, 11) + Rational(13 * place + 1, 17))
        for place, each in enumerate(symbols)
    }


def _evaluated(value, point):
    """Return the number at a point, or None."""
    try:
        found = value.subs(point).evalf(DIGITS, maxn=400)
        return found if found.is_number and found.is_finite else None
    except Exception:
        return None


def _near(here, there):
    if here is None or there is None:
        return False
    size = max(abs(here), abs(there))
    return bool(abs(here - there) <= TOLERANCE * size)


def _agree(wanted, said, points):
    pairs = [(_evaluated(wanted, point), _evaluated(said, point)) for point in points]
    real = [(here, there) for here, there in pairs if here is not None and there is not None]
    both = [(here, there) for here, there in real if here.is_real and there.is_real]
    if any((here is None) != (there is None) for here, there in pairs):
        return False
    used = both if len(both) >= 3 else real
    return len(used) >= 3 and all(_near(here, there) for here, there in used)
