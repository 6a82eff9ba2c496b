"""Numbers with their units, and expressions with words around them."""

import re
from fractions import Fraction

import sympy

from arl_admission.verifiers.programs.answer_kinds import Answer, normal_words, words_of
from arl_admission.verifiers.programs.expressions import Unreadable, read_expression
from arl_admission.verifiers.programs.notation import without_grouping
from arl_admission.verifiers.programs.symbol_names import FUNCTIONS
from arl_admission.verifiers.programs.units import CURRENCIES, read_unit

MOST_WORDS = 3
"""Maximum words of an answer in words, such as `no real solution`. A longer plain text is a sentence without one."""
CUE = re.compile(
    r"(?:^|.*?\b)(?:is|are|be|was|were|equals?|equal to|answer|total of|value of|approximately"
    r"|about|exactly|only|values?)\b\s*:?\s*|^[A-Za-z\u4e00-\u9fff ]+[:：]\s*",
    re.IGNORECASE | re.DOTALL,
)
PROSE = {
    *("not", "is", "than", "which", "that", "because", "so", "if", "when", "it", "are", "was", "see", "step", "part"),
    *("since", "as", "from", "file", "table", "page", "problem", "question", "after", "before", "least", "most"),
}
"""Words that no label of a number has."""
UNIT_BEGIN = re.compile(
    r"(?<=[\d)}!%])\s+(?=[A-Za-z\u4e00-\u9fff])|(?<=[\d)}])(?=[A-Za-z]{2}|[\u4e00-\u9fff])"
    r"|(?<=[A-Za-z])\s+(?=[A-Za-z\u4e00-\u9fff])|(?<=\d)\s*(?=\^\{?\s*\\circ\s*\}?\s*[CF])"
)
"""Places where words behind a number may begin."""


def compound(text, read):
    """Read `3 hours 20 minutes` and `5 feet, 6 inches` as one quantity."""
    number = r"\(?\d+(?:\.\d+)?(?:[*+/\d]*\))?"
    if not re.fullmatch(r"(?:%s\s*[A-Za-z]+\s*(?:,|and)?\s*){2,4}" % number, text):
        return None
    total, units = 0, []
    for value, name in re.findall(r"(%s)\s*([A-Za-z]+)" % number, text):
        unit = read_unit(name)
        if unit is None or (units and (unit[0] != units[-1][0] or unit[1] >= units[-1][1])):
            return None
        units.append(unit)
        total += read_expression(value) * sympy.Rational(unit[1].numerator, unit[1].denominator)
    if units[0][0] not in (("length",), ("time",), ("mass",), ("months",), ("USD",), ("volume",)):
        return None
    return Answer("number", text, value=total, unit=(units[0][0], Fraction(1)), label=text)


def quantity(text, read):
    """Read a number with its unit, or an expression with words around it."""
    text = without_grouping(text)
    money = re.match(r"(-?)\s*(%s)\s*(-?)\s*(?=[\d.(\\])" % "|".join(CURRENCIES), text)
    if money:
        scaled = re.fullmatch(r"(.*\d)\s*(thousand|million|billion|k|M|B)", text)
        rest = re.sub(r"(?<=\d)\s+(?:each|per|in total|total|for|a|an)\b[A-Za-z ]*$", "", text)
        inner = _number(
            (money.group(1) or money.group(3))
            + re.sub(
                r"\s*(?:%s|dollars?)$" % "|".join(CURRENCIES), "", (scaled.group(1) if scaled else rest)[money.end() :]
            )
        )
        scale = (
            {"t": 1000, "k": 1000, "m": 10**6, "M": 10**6, "b": 10**9, "B": 10**9}[scaled.group(2)[0]] if scaled else 1
        )
        return Answer("number", text, value=inner.value * scale, unit=read_unit(money.group(2)))
    splits = [(text[: each.start()], text[each.end() :]) for each in UNIT_BEGIN.finditer(text)]
    for value, rest in splits:
        if read_unit(rest) is not None and (found := _with_unit(value, rest)):
            return found
    try:
        return _number(text)
    except Unreadable:
        pass
    for value, rest in splits:
        if found := _with_unit(value, rest):
            return found
    return _after_words(text, read)


def _number(text):
    value = re.sub(r"\s*(?:\\%|%|percent)\s*$", "", text)
    angle = re.sub(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*$", "", text)
    if value != text:
        return _percent(value)
    if angle != text and not re.search(r"\\?(?:%s)(?![a-z])" % "|".join(FUNCTIONS), text):
        return Answer("number", angle, value=read_expression(angle), unit=(("degree",), Fraction(1)))
    based = re.fullmatch(r"\(?([0-9A-Fa-f]+)\)?_\{?(\d+)\}?|([0-9A-F]+)_\{?\s*([a-z]+)\s*\}?", text)
    if based and based.group(1):
        try:
            return Answer("based", based.group(1), value=sympy.Integer(int(based.group(1), int(based.group(2)))))
        except ValueError:
            pass
    return Answer("number", text, value=read_expression(text))


def _percent(text):
    """Return a percentage. Its name is the number before the sign, which an answer without a sign may give."""
    value = read_expression(text)
    return Answer("number", "", value=value / 100, name=value)


def _with_unit(value, rest):
    """Read a value with the words behind it, if they have no number but an exponent."""
    if re.search(r"\d", re.sub(r"\^\{?\s*-?\d\s*\}?", "", rest)) or re.search(r"[=<>|+*]|\\(?!circ)", rest):
        return None
    try:
        found = _number(value)
    except Unreadable:
        return None
    unit = read_unit(rest)
    scale = (
        {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}.get(
            rest.split(" ")[0].lower()
        )
        if rest
        else None
    )
    if scale is not None:
        found.value, found.text, rest = found.value * scale, "", rest.partition(" ")[2]
        unit = read_unit(rest)
    if unit is None and scale is None and len(rest.split()[0]) < 2 and len(rest) < 3:
        return None
    if unit is not None and unit[0] == ("percent",):
        return _percent(value)
    found.unit = unit if unit is not None and unit[0] else found.unit
    found.label = None if unit is not None else normal_words(rest)
    return found


def _after_words(text, read):
    """Read what follows the words of a short sentence, such as `x is 3` and `A total of 8`."""
    end = max((each.end() for each in CUE.finditer(text)), default=0)
    rest = text[end:] if end else ""
    if rest and not re.search(r"\d", text[:end]):
        return read(rest)
    labelled = re.fullmatch(r"((?:[A-Za-z]{2,}\s+){1,3})([-+]?\(?[\d\\.].*)", text)
    if labelled and "," not in text and not PROSE & set(labelled.group(1).lower().split()):
        found = read(labelled.group(2))
        found.label = found.label or normal_words(labelled.group(1))
        return found
    words = words_of(text)
    if words and not re.search(r"\d", text) and len(text.split()) <= MOST_WORDS + 20 * ("\\" in text):
        return Answer("words", normal_words(text))
    if re.fullmatch(r"[a-zA-Z]{2,4}", text):
        return Answer("words", text.lower())
    raise Unreadable("no answer: %s" % text[:100])
