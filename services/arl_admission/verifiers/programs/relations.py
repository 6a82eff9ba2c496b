"""Sets, inequalities, equations and congruences."""

import re

import sympy
from sympy import Interval, S, oo

from arl_admission.verifiers.programs.answer_kinds import Answer, as_set, interval, words_of
from arl_admission.verifiers.programs.expressions import Unreadable, read_expression
from arl_admission.verifiers.programs.notation import depths, pieces

ORDERS = {"<": -1, "\\le": -1, ">": 1, "\\ge": 1}
BOUNDS = {
    **dict.fromkeys(("at least", "no less than", "not less than"), "\\ge"),
    **dict.fromkeys(("at most", "no more than", "not more than"), "\\le"),
    **dict.fromkeys(("more than", "greater than"), ">"),
    **dict.fromkeys(("less than", "fewer than"), "<"),
}
RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<=|>=|!=|<|>")


def set_of_numbers(text, read):
    """Read unions, differences, membership and braces."""
    match = re.match(r"([a-zA-Z](?:_\w|'|\([a-z]\))?)\s*\\in(?![A-Za-z])\s*(.+)", text)
    if match:
        inner = read(match.group(2))
        return inner if inner.kind in ("list", "set") else interval(inner) or inner
    for sign, combine in (("\\setminus", sympy.Complement), ("\\cup", sympy.Union), ("\\cap", sympy.Intersection)):
        found = pieces(
            text,
            r"\s*%s(?![A-Za-z])\s*" % re.escape(sign)
            + (r"|\s+(?:U|union)\s+|(?<=[)\]])\s*U\s*(?=[(\[])" if sign == "\\cup" else ""),
        )
        if len(found) > 1:
            sets = [as_set(read(each)) for each in found]
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
        return read(built.group(1))
    found = [each for each in pieces(inner, r"\s*[,;]\s*") if each.strip()]
    return Answer("list", text, parts=tuple(read(each) for each in found), label="set")


def related(text, read):
    """Read inequalities, equations and congruences."""
    found = re.fullmatch(r"(.+?)\s*\(?\s*\\?(?:pmod|bmod|mod)\s*[{(]?\s*(\d+)\s*[})]?\s*\)?", text)
    if found:
        value = read(pieces(found.group(1), r"\s*(?:\\equiv|=)\s*")[-1])
        return Answer("residue", text, value=value.value, name=int(found.group(2)))
    bound = re.fullmatch(r"(?:x\s+(?:is|must be)\s+)?(%s)\s+(.+)" % "|".join(BOUNDS), text, re.IGNORECASE)
    if bound:
        return _inequality(
            text, [sympy.Symbol("x", real=True), read(bound.group(2)).value], [BOUNDS[bound.group(1).lower()]]
        )
    exact = pieces(text, r"\s*\\(?:approx|simeq)(?![A-Za-z])\s*")
    if len(exact) > 1 and all(exact):
        return read(exact[0] if not _is_label(exact[0]) else exact[1])
    signs = _top_level(text, RELATION)
    sides = pieces(text, r"\s*(?:%s)\s*" % RELATION.pattern)
    if signs and len(sides) == len(signs) + 1 and all(each.strip() for each in sides):
        signs = [{"<=": "\\le", ">=": "\\ge", "!=": "\\ne"}.get(each, each) for each in signs]
        return _inequality(text, [read_expression(_unlabelled(each)) for each in sides], signs)
    sides = [each.strip() for each in pieces(text, r"\s*(?<![<>!:])={1,2}\s*|\s*:=\s*|\s*\\equiv(?![A-Za-z])\s*")]
    if len(sides) < 2 or not all(sides):
        return None
    return _equation(text, sides, read)


def _top_level(text, pattern):
    levels = depths(text)
    return [each.group() for each in pattern.finditer(text) if levels[each.start()] == 0]


def _unlabelled(text):
    return re.sub(r"^.*[a-zA-Z]{3,}\s*:?\s+(?=[a-z]\b)", "", text)


def _inequality(text, sides, signs):
    symbols = sorted(set().union(*(each.free_symbols for each in sides)), key=str)
    relations = list(zip(sides, signs, sides[1:], strict=False))
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


def _equation(text, sides, read):
    left, right = sides[0], sides[-1]
    if _is_label(right) and not _is_label(left):
        left, right = right, left
    if _is_label(left):
        name = re.sub(r"\s|\\(?=[a-z]+)|[{}]", "", left)
        inner = read(right)
        if (
            inner.kind == "number"
            and inner.value.free_symbols
            and any(str(each) == name for each in inner.value.free_symbols)
        ):
            return Answer("relation", text, value=read_expression(left) - inner.value, name="=")
        if inner.kind == "list" and inner.label != "set" and not name.startswith("("):
            return Answer(
                "list",
                text,
                parts=tuple(Answer("assignment", each.text, name=name, parts=(each,)) for each in inner.parts),
            )
        return Answer("assignment", text, name=name, parts=(inner,))
    if len(sides) > 2:
        return read(right)
    try:
        value = read_expression(left) - read_expression(right)
    except Unreadable:
        if words_of(left) and not words_of(right):
            return read(right)
        raise
    return Answer("relation", text, value=value, name="=") if value.free_symbols else read(right)


def _is_label(text):
    if re.fullmatch(r"\\frac\{d\w?\}\{d\w\}|d\w/d\w", text):
        return True
    if re.fullmatch(r"\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])+\s*\)", text):
        return True
    if re.fullmatch(r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?'*(?:\s*\([a-zA-Z](?:,\s*[a-zA-Z])*\))?", text) and text not in (
        "e",
        "i",
        "\\pi",
    ):
        return True
    return bool(
        re.fullmatch(
            r"\\(?:angle|overline|vec|overrightarrow|bar|hat)\s*\{?\s*[A-Za-z]+\s*\}?|\|[A-Z]+\|"
            r"|[A-Z]{2,}|[PE]\([A-Za-z]+\)|f\^\{?-1\}?\([a-z]\)|[A-Za-z]+(?: [A-Za-z]+)+|[a-z]\(-?\d+\)",
            text,
        )
    )
