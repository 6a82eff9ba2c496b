"""The structure of an answer: words, a choice, a number with its unit, a list, a set, an equation and so on."""

import itertools
import re

import sympy

from arl_admission.verifiers.programs.answer_kinds import Answer, known_words, normal_words, words_of
from arl_admission.verifiers.programs.expressions import Unreadable
from arl_admission.verifiers.programs.notation import depths, is_balanced, pieces, unified, without_grouping
from arl_admission.verifiers.programs.quantities import compound, quantity
from arl_admission.verifiers.programs.relations import related, set_of_numbers

CONNECTORS = r"\s*[,;]\s*(?:\b(?:and|or)\b)?\s*|\s*\b(?:and|or)\b\s*|\s*(?:和|或|与|以及)\s*"
FAMILY = re.compile(
    r"(?:^|[,(]|\s|for|where|with)\s*(?:any |all |every )?([a-zA-Z])\s*(?:\\in\s*\\mathbb\{?[ZN]\}?[_^{}+*>=0-9]*"
    r"|\\in\s*[ZN]|(?:is|are) (?:an? )?(?:any )?integers?|an integer)\s*\)?$"
)


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

    def read(part):
        """Read a part of this text."""
        return _read(part, depth + 1)

    for reader in (
        _choice,
        known_words,
        compound,
        _family,
        _listed,
        _range,
        set_of_numbers,
        related,
        _bracketed,
        _ratio,
    ):
        found = reader(text, read)
        if found is not None:
            return found
    return quantity(text, read)


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


def _choice(text, read):
    """Read `C`, `(C)`, `option C` and `(C) 42`."""
    text = re.sub(r"^(?:the )?(?:correct )?(?:option|choice|answer)s?\s*:?\s*", "", text, flags=re.IGNORECASE)
    match = re.fullmatch(r"\(?\s*([A-J])\s*[).:]*", text) or re.fullmatch(r"\(([a-j])\)", text)
    if match:
        return Answer("choice", text, name=match.group(1).upper())
    match = re.match(r"\(\s*([A-J])\s*\)\s*(?=\S)|([A-J])\s*[.:)]\s*(?=\S)", text)
    if match is None or re.match(r"\s*(?:[,;^_*/=+<>-]|or\b|and\b|\\(?:cup|cap|in|times|cdot)\b)", text[match.end() :]):
        return None
    try:
        body = (read(text[match.end() :]),)
    except Unreadable:
        body = ()
    return Answer("choice", text, name=match.group(1) or match.group(2), parts=body)


def _family(text, read):
    """Read `k\\pi, k\\in\\mathbb{Z}`."""
    match = FAMILY.search(text)
    if match is None or not text[: match.start()].strip(" ,("):
        return None
    body = read(re.sub(r"\b(?:for|where|with)\s*$", "", text[: match.start()].rstrip(" ,(")))
    return Answer("family", text, parts=(body,), name=match.group(1))


def _listed(text, read):
    """Read several answers, and both answers of a sign `\\pm`."""
    between = re.fullmatch(r"(?:.*\b)?(?:between|from)\s+(.+?)\s+(?:and|to)\s+(.+)", text, re.IGNORECASE)
    if between:
        return Answer("range", text, parts=tuple(read(each) for each in between.groups()))
    if found := _enumerated(text, read):
        return found
    if re.search(r"\\ldots|\.\.\.", text):
        return _sequence(text)
    groups = pieces(text, r"\s*(?:\bor\b|;)\s*")
    if len(groups) > 1 and all(len(pieces(each, CONNECTORS)) > 1 for each in groups):
        return Answer("list", text, parts=tuple(_coordinates(read(each)) for each in groups))
    grouped = without_grouping(text)
    found = [each.strip() for each in pieces(grouped, CONNECTORS)]
    found = [each for each in found if each and each != "USD"]
    if len(found) > 1:
        found = [re.sub(r"^(?:either|both)\s+", "", each) for each in found]
        parts = [read(each) for each in found]
        return _joined(text, parts)
    if re.search(r"\\pm(?![A-Za-z])|\\mp(?![A-Za-z])|\+/-|\+-", text) and len(found) == 1:
        text = re.sub(r"\+/-|\+-", r"\\pm ", text)
        above = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
        below = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
        return _joined(text, [read(each) for each in (above, below)])
    return None


def _enumerated(text, read):
    """Read `(a) 5, (b) 7`, options such as `ABD`, and `17 remainder 3`."""
    if re.fullmatch(r"[A-J]{2,5}", text) and sorted(set(text)) == list(text):
        return Answer("list", text, parts=tuple(read(each) for each in text))
    items = re.findall(r"\(?\b([a-e])\)\s*(.+?)\s*(?=[,;]?\s*\(?\b[a-e]\)|$)", text)
    if len(items) > 1 and re.match(r"\(?a\)", text):
        parts = [read(each) for _, each in items]
        for (letter, _), each in zip(items, parts, strict=True):
            each.label = letter
        return Answer("list", text, parts=tuple(parts))
    division = re.fullmatch(r"(\d+)\s*(?:remainder|[Rr])\s*(\d+)", text)
    return Answer("tuple", text, parts=tuple(map(read, division.groups())), name="remainder") if division else None


def _coordinates(answer):
    """Return `x=2, y=3` as the coordinates (2, 3); any other answer unchanged."""
    names = [each.name for each in answer.parts]
    if answer.kind != "list" or any(each.kind != "assignment" for each in answer.parts) or len({*names}) != len(names):
        return answer
    parts = sorted(answer.parts, key=lambda each: each.name)
    return Answer("tuple", answer.text, parts=tuple(each.parts[0] for each in parts), name="()")


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
    for before, after in itertools.pairwise(flat):
        if before.kind == "assignment" and after.kind not in ("assignment", "relation") and len(flat) > 1:
            after.name, after.kind, after.parts = before.name, "assignment", (Answer(**_fields(after)),)
    return Answer("list", text, parts=tuple(flat))


def _fields(answer):
    return dict(vars(answer))


def _range(text, read):
    """Read `3 to 5`."""
    match = re.fullmatch(r"([^a-zA-Z]+?)\s+to\s+([^a-zA-Z]+?)(\s+[A-Za-z ]+)?", text)
    if match is None:
        return None
    unit = match.group(3) or ""
    return Answer("range", text, parts=tuple(read(each + unit) for each in match.groups()[:2]))


def _bracketed(text, read):
    """Read tuples, intervals, vectors and matrices."""
    text = re.sub(r"^[\[(]\s*(\\begin\{array\}.*\\end\{array\})\s*[\])]$", r"\1", text)
    match = re.fullmatch(
        r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}(\^\{?(?:T|\\top)\}?)?", text, re.DOTALL
    )
    if match:
        rows = [pieces(row, r"\s*&\s*") for row in re.split(r"\\\\", match.group(2)) if row.strip()]
        cells = [[read(each) for each in row] for row in rows]
        cells = [list(each) for each in zip(*cells, strict=False)] if match.group(3) else cells
        return _matrix(text, cells, "determinant" if match.group(1)[0] in "vV" else None)
    text = re.sub(r"^[A-Z]'?\s*(?=\([^()]*,)", "", text)
    match = re.fullmatch(r"(\(|\[|\\langle|<)(.*)(\)|\]|\\rangle|>)", text, re.DOTALL)
    if match is None or 0 in depths(text)[1:-1]:
        return None
    found = list(pieces(match.group(2), r"\s*[,;]\s*"))
    if len(found) < 2 or not all(each.strip() for each in found):
        return None
    parts = tuple(read(each) for each in found)
    if all(each.kind == "tuple" and each.name[0] == "[" for each in parts) and match.group(1) == "[":
        return _matrix(text, [list(each.parts) for each in parts], None)
    opening, closing = (
        "(" if each in ("\\langle", "<") else ")" if each in ("\\rangle", ">") else each for each in match.groups()[::2]
    )
    return Answer("tuple", text, parts=parts, name=opening + closing)


def _matrix(text, cells, label):
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("rows of different lengths")
    return Answer(
        "matrix",
        text,
        parts=tuple(each for row in cells for each in row),
        name=(len(cells), len(cells[0])),
        label=label,
    )


def _ratio(text, read):
    """Read `2:3:4` and times of the day."""
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap])\.?m?\.?", text, re.IGNORECASE) or re.fullmatch(
        r"(\d{1,2}):(\d{2})(?::(\d{2}))?()", text
    )
    found = pieces(text, r"\s*:\s*")
    if clock:
        return Answer(
            "clock", text, name=tuple(int(each or 0) for each in clock.groups()[:3]), label=clock.group(4).lower()
        )
    if len(found) < 2 or not all(each.strip() for each in found):
        return None
    if words_of(found[0]) and len(found) == 2:
        inner = read(found[1])
        inner.label = inner.label or normal_words(found[0])
        return inner
    return Answer("ratio", text, parts=tuple(read(each) for each in found))
