"""Units of measure and money: what a text has behind its number, and how two of them convert."""

import re
from fractions import Fraction

_LENGTHS = (
    "mm millimeter .001;cm centimeter .01;dm decimeter .1;m meter 1;km kilometer 1000"
    ";in inch .0254;ft foot .3048;yd yard .9144;mi mile 1609.344"
)
_TIMES = "ms millisecond .001;s sec second 1;min minute 60;h hr hour 3600;day 86400;week 604800"
_CALENDAR = "month 1;yr year 12"
_MASSES = "mg milligram .001;g gram 1;kg kilogram 1000;t tonne 1000000;oz ounce 28.349523125;lb pound 453.59237"
_VOLUMES = "ml mL milliliter .001;cl centiliter .01;l L liter 1"
_MONEY = "cent 1/100;USD dollar buck 1"
_OTHERS = (
    "EUR euro;GBP;CNY yuan rmb;INR rupee;degree deg;radian rad;percent;unit;mph;kph;kmh"
    ";N newton;J joule;W watt;kW kilowatt;V volt;A ampere amp;K kelvin;Hz hertz;Pa pascal;mol mole"
    ";C celsius;F fahrenheit;person people;acre;hectare;knot;gallon;quart;pint;cup;dozen;bit;byte;calorie;point"
)
_MEASURES = {
    "length": _LENGTHS,
    "time": _TIMES,
    "months": _CALENDAR,
    "mass": _MASSES,
    "volume": _VOLUMES,
    "USD": _MONEY,
}
PLURALS = {"feet": "foot", "inches": "inch", "metre": "meter", "metres": "meter", "people": "person", "pence": "penny"}
NO_DIMENSION = "unit"
"""A word that says nothing: `12 square units` is 12."""


def _table():
    found = {}
    for dimension, entries in _MEASURES.items():
        for entry in entries.split(";"):
            *names, factor = entry.split()
            found.update((name, ((dimension,), Fraction(factor))) for name in names)
    for entry in _OTHERS.split(";"):
        names = entry.split()
        found.update((name, ((names[0],), Fraction(1))) for name in names)
    found["mph"] = (("length", "/time"), Fraction("1609.344") / 3600)
    found["kph"] = found["kmh"] = (("length", "/time"), Fraction(1000, 3600))
    return found


UNITS = _table()
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
CURRENCIES = ("USD", "EUR", "GBP", "CNY", "INR")


def read_unit(text):
    """Return the dimensions and the factor of a unit such as `km/h` or `square meters`; None for any other words."""
    words = re.sub(r"\b(?:of|each|in total|long|high|wide|tall|deep|old)\b", " ", text.strip(" .{}()"))
    words = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", " degree ", words).replace("²", "^2").replace("³", "^3")
    tokens = re.findall(r"[A-Za-z]+|\^\s*\{?\s*\d\s*\}?|\S", words)
    if not tokens:
        return None
    factors, power, sign = [], 1, 1
    for token in tokens:
        if token in ("/", "per", "a", "an"):
            sign = -1
        elif token.lower() in _POWERS:
            power = _POWERS[token.lower()]
        elif token in ("squared", "cubed") or token[0] == "^":
            if not factors:
                return None
            unit, _, before = factors.pop()
            factors.append((unit, _POWERS.get(token) or int(re.sub(r"\D", "", token)), before))
        else:
            unit = _lookup(token)
            if unit is None:
                return None
            factors.append((unit, power, sign))
            power = 1
    return _product(factors)


def _product(factors):
    """Return dimensions and factor of units with their powers and signs."""
    dimensions, factor = [], Fraction(1)
    for (names, size), power, sign in factors:
        factor *= size ** (power * sign)
        dimensions += [each if sign > 0 else _inverse(each) for each in names] * power
    return tuple(sorted(each for each in dimensions if each.strip("/") != NO_DIMENSION)), factor


def _inverse(name):
    return name[1:] if name.startswith("/") else "/" + name


def _lookup(token):
    if token in UNITS:
        return UNITS[token]
    word = PLURALS.get(token.lower(), token.lower())
    if len(word) < 2:
        return None
    return UNITS.get(word) or (UNITS.get(word[:-1]) if word.endswith("s") else None)
