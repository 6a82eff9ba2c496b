"""Answers, and the words of them."""

import re

import sympy
from sympy import Interval, S

from arl_admission.verifiers.programs.symbol_names import FUNCTIONS

WORD = re.compile(r"(?<![\\A-Za-z{_^])[A-Za-z][A-Za-z'-]+(?![A-Za-z'-]*\()|[\u0370-\u9fff\uac00-\ud7a3]+")
NAMES = {*FUNCTIONS, "sqrt", "pi", "frac", "inf", "infinity", "or", "and", "mod", "union", "in", "to", "if", "for"}
NOTHING = {
    *("no solution", "no solutions", "no real solution", "no real solutions", "none", "empty set", "\\emptyset"),
    *(
        "there are no solutions",
        "there is no solution",
        "no such number",
        "no answer",
        "no real roots",
        "\\{\\}",
        "\\{ \\}",
    ),
    *("there are no real solutions", "no solution exists", "无解", "空集", "no roots", "null set"),
}
MISSING = {"dne", "does not exist", "the limit does not exist", "undefined", "not defined", "limit does not exist"}
IMPOSSIBLE = {"impossible", "not possible", "it is impossible", "it is not possible"}
REALS = {"all real numbers", "all reals", "\\mathbb{R}", "the real numbers", "any real number", "\\mathbf{R}"}
SYNONYMS = {
    **dict.fromkeys(NOTHING, "no solution"),
    **dict.fromkeys(MISSING, "does not exist"),
    **dict.fromkeys(IMPOSSIBLE, "impossible"),
    **dict.fromkeys(("correct", "正确", "对"), "true"),
    **dict.fromkeys(("incorrect", "not true", "错误", "错"), "false"),
    **dict.fromkeys(("是", "oui", "sí", "ja"), "yes"),
    **dict.fromkeys(("否", "non", "nein"), "no"),
}
NUMBER_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
DATE = re.compile(
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d{1,2}(?:, \d{4})?|[a-z]+day,? [a-z]+ \d{1,2}"
)
PRODUCT = re.compile(r"[a-df-km-np-z]{2,3}|[A-Z]{2,3}|[ei]?pi[ei]?")
"""Letters side by side that are a product rather than a word."""


class Answer:
    """One answer. The kind says which of the other fields have a meaning."""

    def __init__(self, kind, text, **fields):
        self.kind, self.text = kind, text
        self.parts = fields.get("parts", ())
        self.value = fields.get("value")
        self.name = fields.get("name")
        self.unit = fields.get("unit")
        self.label = fields.get("label")

    def __repr__(self):
        return "Answer(%s)" % ", ".join("%s=%r" % each for each in vars(self).items() if each[1])


def words_of(text):
    """Return the words of a text that are no names of mathematics."""
    return [each for each in WORD.findall(text) if each.lower() not in NAMES and each not in NAMES]


def normal_words(text):
    """Return words in the form in which they are compared."""
    text = re.sub(r"\\[a-zA-Z]+\s*", " ", text) if not text.startswith("\\emptyset") else text
    text = re.sub(r"[{}$\"'’.,!?()*]|(?<=\w)-(?=\w)", " ", text).lower().replace("  ", " ")
    text = re.sub(r"^(?:on|in|at|the|a|an)\s+", "", " ".join(text.split()))
    return SYNONYMS.get(text, text)


def known_words(text, read):
    """Read answers that have no number in them."""
    lowered = " ".join(text.lower().split())
    if text in REALS or lowered in REALS or re.fullmatch(r"[a-zA-Z]\s*\\in\s*\\mathbb\{?R\}?", text):
        return Answer("set", text, value=S.Reals)
    if lowered in SYNONYMS or re.sub(r"^(?:the|a|an)\s+", "", lowered) in SYNONYMS:
        return Answer("words", SYNONYMS.get(lowered) or SYNONYMS[re.sub(r"^(?:the|a|an)\s+", "", lowered)])
    is_plain = not re.search(r"[\d\\^_=+*/<>|]|\b[a-zA-Z]\b(?<![aAI])", text)
    if DATE.fullmatch(lowered):
        return Answer("words", normal_words(text))
    if lowered in NUMBER_WORDS:
        return Answer("number", "", value=sympy.Integer(NUMBER_WORDS.index(lowered)))
    if is_plain and words_of(text) and not PRODUCT.fullmatch(text):
        if re.search(r",|\b(?:and|or)\b|;", text) and not re.search(r"\b(?:is|are|not|because|so)\b", text):
            return None
        return Answer("words", normal_words(text))
    return None


def as_set(answer):
    """Return an answer as a SymPy set of numbers, or None."""
    if answer.kind == "set":
        return answer.value
    if answer.kind == "list" and all(each.kind == "number" for each in answer.parts):
        return sympy.FiniteSet(*(each.value for each in answer.parts))
    if answer.kind == "words" and answer.text == "no solution":
        return S.EmptySet
    found = interval(answer)
    return found.value if found else None


def interval(answer):
    if answer.kind != "tuple" or len(answer.parts) != 2 or any(each.kind != "number" for each in answer.parts):
        return None
    low, high = (each.value for each in answer.parts)
    try:
        value = Interval(low, high, answer.name[0] == "(", answer.name[1] == ")")
    except (ValueError, TypeError, NotImplementedError):
        return None
    return Answer("set", answer.text, value=value)
