"""The structure of an answer: words, a choice, a number with its unit, a list, a set, an equation and so on."""

import re
from fractions import Fraction

import sympy
from sympy import Interval, S, oo

from arl_admission.verifiers.programs.expressions import FUNCTIONS, Unreadable, read_expression
from arl_admission.verifiers.programs.notation import depths, is_balanced, pieces, unified, without_grouping
from arl_admission.verifiers.programs.units import CURRENCIES, read_unit

MOST_WORDS = 3
"""Maximum words of an answer in words, such as `no real solution`. A longer plain text is a sentence without one."""
WORD = re.compile(r"(?<![\\A-Za-z{_^])[A-Za-z][A-Za-z'-]+(?![A-Za-z'-]*\()|[\u0370-\u9fff\uac00-\ud7a3]+")
NAMES = {*FUNCTIONS, "sqrt", "pi", "frac", "inf", "infinity", "or", "and", "mod", "union", "in", "to", "if", "for"}
CONNECTORS = r"\s*[,;]\s*(?:\b(?:and|or)\b)?\s*|\s*\b(?:and|or)\b\s*|\s*(?:和|或|与|以及)\s*"
CUE = re.compile(
    r"(?:^|.*?\b)(?:is|are|be|was|were|equals?|equal to|answer|total of|value of|approximately|about|exactly|only|values?)\b\s*:?\s*|^[A-Za-z\u4e00-\u9fff ]+[:：]\s*",
    re.I | re.S,
)
NOTHING = {
    *("no solution", "no solutions", "no real solution", "no real solutions", "none", "empty set", "\\emptyset"),
    *("there are no solutions", "there is no solution", "no such number", "no answer", "no real roots", "\\{\\}", "\\{ \\}"),
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
UNIT_BEGIN = re.compile(
    r"(?<=[\d)}!%])\s+(?=[A-Za-z\u4e00-\u9fff])|(?<=[\d)}])(?=[A-Za-z]{2}|[\u4e00-\u9fff])"
    r"|(?<=[A-Za-z])\s+(?=[A-Za-z\u4e00-\u9fff])|(?<=\d)\s*(?=\^\{?\s*\\circ\s*\}?\s*[CF])"
)
"""Places where words behind a number may begin."""
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
PRODUCT = re.compile(r"[a-df-km-np-z]{2,3}|[A-Z]{2,3}|[ei]?pi[ei]?")
"""Letters side by side that are a product rather than a word."""
ORDERS = {"<": -1, "\\le": -1, ">": 1, "\\ge": 1}
RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<=|>=|!=|<|>")
FAMILY = re.compile(
    r"(?:^|[,(]|\s|for|where|with)\s*(?:any |all |every )?([a-zA-Z])\s*(?:\\in\s*\\mathbb\{?[ZN]\}?[_^{}+*>=0-9]*|\\in\s*[ZN]|(?:is|are) (?:an? )?(?:any )?integers?|an integer)\s*\)?$"
)


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


def read_answer(text):
    """Return the answer in a text of any notation. Raises Unreadable."""
    return _read(unified(money_marked(text)), 0)


def money_marked(text):
    """Return the text without the dollars that only delimit mathematics; a dollar of money becomes its unit."""
    text = re.sub(r"\\\$\s*", " USD ", text)
    if text.count("$") % 2 or re.search(r"(?<![\w$])\$\s?\d[\d,.]*(?:\s(?![^$]*\\)|$)[^$]*(?:\$\d|$)", text):
        text = re.sub(r"(?<!\$)\$\s*(?=[\d.])(?!\$)", " USD ", text) if re.search(r"\$\s*[\d.]", text) else text
    return re.sub(r"\$+|\\[()]|\\\[(?!\d)|\\\]", " ", text)


def _read(text, depth):
    if depth > 8:
        raise Unreadable("nested too deeply")
    text = _stripped(text)
    if not text:
        raise Unreadable("empty")
    if not is_balanced(text):
        raise Unreadable("braces do not match")
    for reader in (_choice, _known_words, _compound, _family, _listed, _range, _set, _related, _bracketed, _ratio):
        found = reader(text, depth)
        if found is not None:
            return found
    return _quantity(text, depth)


def _stripped(text):
    text = text.strip().strip("*").strip()
    text = re.sub(r"^(?:\\therefore|\\implies|\\Rightarrow|=)\s*", "", text)
    text = re.sub(r"^(?:\\approx|≈|~)\s*", "", text)
    while text and (text[-1] in ".,;:" or text.endswith("\\\\")) and not text.endswith(("\\,", "\\;")):
        text = text[: -2 if text.endswith("\\\\") else -1].rstrip()
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        text = text[1:-1]
    while text[:1] == "{" and text[-1:] == "}" and depths(text)[1:-1].count(0) == 0 and not re.search("[,;]", text):
        text = text[1:-1].strip()
    return text.strip()


def _choice(text, depth):
    """Read `C`, `(C)`, `option C` and `(C) 42`."""
    text = re.sub(r"^(?:the )?(?:correct )?(?:option|choice|answer)s?\s*:?\s*", "", text, flags=re.I)
    match = re.fullmatch(r"\(?\s*([A-J])\s*[).:]*", text) or re.fullmatch(r"\(([a-j])\)", text)
    if match:
        return Answer("choice", text, name=match.group(1).upper())
    match = re.match(r"\(\s*([A-J])\s*\)\s*(?=\S)|([A-J])\s*[.:)]\s*(?=\S)", text)
    if match is None or re.match(r"\s*(?:[,;^_*/=+<>-]|or\b|and\b|\\(?:cup|cap|in|times|cdot)\b)", text[match.end() :]):
        return None
    try:
        body = (_read(text[match.end() :], depth + 1),)
    except Unreadable:
        body = ()
    return Answer("choice", text, name=match.group(1) or match.group(2), parts=body)


def words_of(text):
    """Return the words of a text that are no names of mathematics."""
    return [each for each in WORD.findall(text) if each.lower() not in NAMES and each not in NAMES]


def normal_words(text):
    """Return words in the form in which they are compared."""
    text = re.sub(r"\\[a-zA-Z]+\s*", " ", text) if not text.startswith("\\emptyset") else text
    text = re.sub(r"[{}$\"'’.,!?()*]|(?<=\w)-(?=\w)", " ", text).lower().replace("  ", " ")
    text = re.sub(r"^(?:on|in|at|the|a|an)\s+", "", " ".join(text.split()))
    return SYNONYMS.get(text, text)


def _known_words(text, depth):
    """Read answers that have no number in them."""
    lowered = " ".join(text.lower().split())
    if text in REALS or lowered in REALS or re.fullmatch(r"[a-zA-Z]\s*\\in\s*\\mathbb\{?R\}?", text):
        return Answer("set", text, value=S.Reals)
    if lowered in SYNONYMS or re.sub(r"^(?:the|a|an)\s+", "", lowered) in SYNONYMS:
        return Answer("words", SYNONYMS.get(lowered) or SYNONYMS[re.sub(r"^(?:the|a|an)\s+", "", lowered)])
    is_plain = not re.search(r"[\d\\^_=+*/<>|]|\b[a-zA-Z]\b(?<![aAI])", text)
    if lowered in NUMBER_WORDS:
        return Answer("number", "", value=sympy.Integer(NUMBER_WORDS.index(lowered)))
    if is_plain and words_of(text) and not PRODUCT.fullmatch(text):
        if re.search(r",|\b(?:and|or)\b|;", text) and not re.search(r"\b(?:is|are|not|because|so)\b", text):
            return None
        return Answer("words", normal_words(text))
    return None


def _compound(text, depth):
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


def _family(text, depth):
    """Read `k\\pi, k\\in\\mathbb{Z}`."""
    match = FAMILY.search(text)
    if match is None or not text[: match.start()].strip(" ,("):
        return None
    body = _read(re.sub(r"\b(?:for|where|with)\s*$", "", text[: match.start()].rstrip(" ,(")), depth + 1)
    return Answer("family", text, parts=(body,), name=match.group(1))


def _listed(text, depth):
    """Read several answers, and both answers of a sign `\\pm`."""
    between = re.fullmatch(r"(?:.*\b)?(?:between|from)\s+(.+?)\s+(?:and|to)\s+(.+)", text, re.I)
    if between:
        return Answer("range", text, parts=tuple(_read(each, depth + 1) for each in between.groups()))
    if re.search(r"\\ldots|\.\.\.", text):
        return _sequence(text)
    grouped = without_grouping(text)
    found = [each.strip() for each in pieces(grouped, CONNECTORS)]
    found = [each for each in found if each and each != "USD"]
    if len(found) > 1:
        found = [re.sub(r"^(?:either|both)\s+", "", each) for each in found]
        parts = [_read(each, depth + 1) for each in found]
        return _joined(text, parts)
    if re.search(r"\\pm(?![A-Za-z])|\\mp(?![A-Za-z])|\+/-|\+-", text) and len(found) == 1:
        text = re.sub(r"\+/-|\+-", r"\\pm ", text)
        above = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
        below = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
        return _joined(text, [_read(each, depth + 1) for each in (above, below)])
    return None


def _sequence(text):
    return Answer("words", re.sub(r"\s|\\ldots|\.\.\.|[{}]", lambda found: "…" if len(found.group()) > 1 else "", text))


def _joined(text, parts):
    flat = []
    for each in parts:
        flat += each.parts if each.kind == "list" else [each]
    if all(each.kind == "set" for each in flat) and any(not isinstance(each.value, sympy.FiniteSet) for each in flat):
        is_both = re.search(r"\band\b|,", text) and any(each.name for each in flat) and not re.search(r"\bor\b", text)
        combine = sympy.Intersection if is_both else sympy.Union
        return Answer("set", text, value=combine(*(each.value for each in flat)), name=flat[0].name)
    for before, after in zip(flat, flat[1:]):
        if before.kind == "assignment" and after.kind not in ("assignment", "relation") and len(flat) > 1:
            after.name, after.kind, after.parts = before.name, "assignment", (Answer(**_fields(after)),)
    return Answer("list", text, parts=tuple(flat))


def _fields(answer):
    return dict(vars(answer))


def _range(text, depth):
    """Read `3 to 5`."""
    match = re.fullmatch(r"([^a-zA-Z]+?)\s+to\s+([^a-zA-Z]+?)(\s+[A-Za-z ]+)?", text)
    if match is None:
        return None
    unit = match.group(3) or ""
    return Answer("range", text, parts=tuple(_read(each + unit, depth + 1) for each in match.groups()[:2]))


def _set(text, depth):
    """Read unions, differences, membership and braces."""
    match = re.match(r"([a-zA-Z](?:_\w|'|\([a-z]\))?)\s*\\in(?![A-Za-z])\s*(.+)", text)
    if match:
        inner = _read(match.group(2), depth + 1)
        return inner if inner.kind in ("list", "set") else _interval(inner) or inner
    for sign, combine in (("\\setminus", sympy.Complement), ("\\cup", sympy.Union), ("\\cap", sympy.Intersection)):
        found = pieces(text, r"\s*%s(?![A-Za-z])\s*" % re.escape(sign) + (r"|\s+(?:U|union)\s+|(?<=[)\]])\s*U\s*(?=[(\[])" if sign == "\\cup" else ""))
        if len(found) > 1:
            sets = [as_set(_read(each, depth + 1)) for each in found]
            if None in sets:
                raise Unreadable("no set: %s" % text)
            value = sets[0]
            for each in sets[1:]:
                value = combine(value, each)
            return Answer("set", text, value=value)
    is_braced = (text.startswith("\\{") and text.endswith("\\}")) or (text.startswith("{") and text.endswith("}"))
    if not is_braced:
        return None
    inner = text[2:-2] if text.startswith("\\{") else text[1:-1]
    built = re.match(r"\s*[a-zA-Z](?:\s*\\in\s*\\mathbb\{?R\}?)?\s*[|:]\s*(.+)", inner)
    if built:
        return _read(built.group(1), depth + 1)
    found = [each for each in pieces(inner, r"\s*[,;]\s*") if each.strip()]
    return Answer("list", text, parts=tuple(_read(each, depth + 1) for each in found), label="set")


def as_set(answer):
    """Return an answer as a SymPy set of numbers, or None."""
    if answer.kind == "set":
        return answer.value
    if answer.kind == "list" and all(each.kind == "number" for each in answer.parts):
        return sympy.FiniteSet(*(each.value for each in answer.parts))
    if answer.kind == "words" and answer.text == "no solution":
        return S.EmptySet
    found = _interval(answer)
    return found.value if found else None


def _interval(answer):
    if answer.kind != "tuple" or len(answer.parts) != 2 or any(each.kind != "number" for each in answer.parts):
        return None
    low, high = (each.value for each in answer.parts)
    try:
        value = Interval(low, high, answer.name[0] == "(", answer.name[1] == ")")
    except (ValueError, TypeError, NotImplementedError):
        return None
    return Answer("set", answer.text, value=value)


def _related(text, depth):
    """Read inequalities, equations and congruences."""
    found = re.fullmatch(r"(.+?)\s*\(?\s*\\?(?:pmod|bmod|mod)\s*[{(]?\s*(\d+)\s*[})]?\s*\)?", text)
    if found:
        value = _read(pieces(found.group(1), r"\s*(?:\\equiv|=)\s*")[-1], depth + 1)
        return Answer("residue", text, value=value.value, name=int(found.group(2)))
    signs = _top_level(text, RELATION)
    sides = pieces(text, r"\s*(?:%s)\s*" % RELATION.pattern)
    if signs and len(sides) == len(signs) + 1 and all(each.strip() for each in sides):
        signs = [{"<=": "\\le", ">=": "\\ge", "!=": "\\ne"}.get(each, each) for each in signs]
        return _inequality(text, [read_expression(_unlabelled(each)) for each in sides], signs)
    sides = [each.strip() for each in pieces(text, r"\s*(?<![<>!:])={1,2}\s*|\s*:=\s*|\s*\\(?:equiv|approx)(?![A-Za-z])\s*")]
    if len(sides) < 2 or not all(sides):
        return None
    return _equation(text, sides, depth)


def _top_level(text, pattern):
    levels = depths(text)
    return [each.group() for each in pattern.finditer(text) if levels[each.start()] == 0]


def _unlabelled(text):
    return re.sub(r"^.*[a-zA-Z]{3,}\s*:?\s+(?=[a-z]\b)", "", text)


def _inequality(text, sides, signs):
    symbols = sorted(set().union(*(each.free_symbols for each in sides)), key=str)
    relations = list(zip(sides, signs, sides[1:]))
    if len(symbols) == 1:
        sets = [_solution(left, sign, right, symbols[0]) for left, sign, right in relations]
        if None not in sets:
            return Answer("set", text, value=sympy.Intersection(*sets), name=str(symbols[0]))
    parts = []
    for left, sign, right in relations:
        difference = right - left if ORDERS.get(sign, 0) < 0 else left - right
        parts.append(Answer("relation", text, value=difference, name={"<": ">", "\\le": "\\ge"}.get(sign, sign)))
    return parts[0] if len(parts) == 1 else Answer("list", text, parts=tuple(parts))


def _solution(left, sign, right, symbol):
    if right == symbol and not left.has(symbol):
        left, right, sign = right, left, {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(sign, sign)
    if left == symbol and not right.has(symbol):
        if sign == "\\ne":
            return sympy.Complement(S.Reals, sympy.FiniteSet(right))
        is_open = sign in ("<", ">")
        return Interval(-oo, right, True, is_open) if ORDERS[sign] < 0 else Interval(right, oo, is_open, True)
    relation = {"<": sympy.Lt, "\\le": sympy.Le, ">": sympy.Gt, "\\ge": sympy.Ge, "\\ne": sympy.Ne}[sign](left, right)
    try:
        found = sympy.solve_univariate_inequality(relation, symbol, relational=False)
        return found if isinstance(found, sympy.Set) else None
    except Exception:
        return None


def _equation(text, sides, depth):
    left, right = sides[0], sides[-1]
    if _is_label(right) and not _is_label(left):
        left, right = right, left
    if _is_label(left):
        name = re.sub(r"\s|\\(?=[a-z]+)|[{}]", "", left)
        inner = _read(right, depth + 1)
        if inner.kind == "number" and inner.value.free_symbols and any(str(each) == name for each in inner.value.free_symbols):
            return Answer("relation", text, value=read_expression(left) - inner.value, name="=")
        if inner.kind == "list" and inner.label != "set" and not name.startswith("("):
            return Answer("list", text, parts=tuple(Answer("assignment", each.text, name=name, parts=(each,)) for each in inner.parts))
        return Answer("assignment", text, name=name, parts=(inner,))
    if len(sides) > 2:
        return _read(right, depth + 1)
    try:
        value = read_expression(left) - read_expression(right)
    except Unreadable:
        if words_of(left) and not words_of(right):
            return _read(right, depth + 1)
        raise
    return Answer("relation", text, value=value, name="=") if value.free_symbols else _read(right, depth + 1)


def _is_label(text):
    if re.fullmatch(r"\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)", text):
        return True
    if re.fullmatch(r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?'*(?:\s*\([a-zA-Z](?:,\s*[a-zA-Z])*\))?", text) and text not in ("e", "i", "\\pi"):
        return True
    return bool(re.fullmatch(r"\\(?:angle|overline|vec|overrightarrow|bar|hat)\s*\{?\s*[A-Za-z]+\s*\}?|\|[A-Z]+\||[A-Z]{2,}|[PE]\([A-Za-z]+\)|f\^\{?-1\}?\([a-z]\)|[A-Za-z]+(?: [A-Za-z]+)+|[a-z]\(-?\d+\)", text))


def _bracketed(text, depth):
    """Read tuples, intervals, vectors and matrices."""
    match = re.fullmatch(r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}(\^\{?(?:T|\\top)\}?)?", text, re.S)
    if match:
        rows = [pieces(row, r"\s*&\s*") for row in re.split(r"\\\\", match.group(2)) if row.strip()]
        cells = [[_read(each, depth + 1) for each in row] for row in rows]
        cells = [list(each) for each in zip(*cells)] if match.group(3) else cells
        return _matrix(text, cells, "determinant" if match.group(1)[0] in "vV" else None)
    match = re.fullmatch(r"(\(|\[|\\langle|<)(.*)(\)|\]|\\rangle|>)", text, re.S)
    if match is None or 0 in depths(text)[1:-1]:
        return None
    found = [each for each in pieces(match.group(2), r"\s*[,;]\s*")]
    if len(found) < 2 or not all(each.strip() for each in found):
        return None
    parts = tuple(_read(each, depth + 1) for each in found)
    if all(each.kind == "tuple" and each.name[0] == "[" for each in parts) and match.group(1) == "[":
        return _matrix(text, [list(each.parts) for each in parts], None)
    opening, closing = ("(" if each in ("\\langle", "<") else ")" if each in ("\\rangle", ">") else each for each in match.groups()[::2])
    return Answer("tuple", text, parts=parts, name=opening + closing)


def _matrix(text, cells, label):
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("rows of different lengths")
    return Answer("matrix", text, parts=tuple(each for row in cells for each in row), name=(len(cells), len(cells[0])), label=label)


def _ratio(text, depth):
    """Read `2:3:4` and times of the day."""
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap])\.?m?\.?", text, re.I) or re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?()", text)
    found = pieces(text, r"\s*:\s*")
    if clock:
        return Answer("clock", text, name=tuple(int(each or 0) for each in clock.groups()[:3]), label=clock.group(4).lower())
    if len(found) < 2 or not all(each.strip() for each in found):
        return None
    if words_of(found[0]) and len(found) == 2:
        return _read(found[1], depth + 1)
    return Answer("ratio", text, parts=tuple(_read(each, depth + 1) for each in found))


def _quantity(text, depth):
    """Read a number with its unit, or an expression with words around it."""
    text = without_grouping(text)
    money = re.match(r"(-?)\s*(%s)\s*(-?)\s*(?=[\d.(\\])" % "|".join(CURRENCIES), text)
    if money:
        scaled = re.fullmatch(r"(.*\d)\s*(thousand|million|billion|k|M|B)", text)
        inner = _number((money.group(1) or money.group(3)) + re.sub(r"\s*(?:%s|dollars?)$" % "|".join(CURRENCIES), "", (scaled.group(1) if scaled else text)[money.end() :]))
        scale = {"t": 1000, "k": 1000, "m": 10**6, "M": 10**6, "b": 10**9, "B": 10**9}[scaled.group(2)[0]] if scaled else 1
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
    return _after_words(text, depth)


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
    scale = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}.get(rest.split(" ")[0].lower()) if rest else None
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


def _after_words(text, depth):
    """Read what follows the words of a short sentence, such as `x is 3` and `A total of 8`."""
    match = None
    for match in CUE.finditer(text):
        pass
    rest = text[match.end() :] if match else ""
    if rest and rest != text and not re.search(r"\d", text[: match.end()]):
        return _read(rest, depth + 1)
    words = words_of(text)
    if words and not re.search(r"\d", text) and len(text.split()) <= MOST_WORDS + 20 * ("\\" in text):
        return Answer("words", normal_words(text))
    if re.fullmatch(r"[a-zA-Z]{2,4}", text):
        return Answer("words", text.lower())
    raise Unreadable("no answer: %s" % text[:100])
