"""Notation: one spelling for the many that texts use for the same mathematics, and parts of a text between brackets."""

import re
import unicodedata

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
SIGNS = {
    **dict.fromkeys("−–‒﹣－", "-"),
    "×": "\\times ",
    "✕": "\\times ",
    "⋅": "\\cdot ",
    "·": "\\cdot ",
    "∙": "\\cdot ",
    "÷": "/",
    "∕": "/",
    "⁄": "/",
    "π": "\\pi ",
    "∞": "\\infty ",
    "θ": "\\theta ",
    "α": "\\alpha ",
    "β": "\\beta ",
    "γ": "\\gamma ",
    "λ": "\\lambda ",
    "μ": "\\mu ",
    "σ": "\\sigma ",
    "φ": "\\phi ",
    "ω": "\\omega ",
    "Δ": "\\Delta ",
    "δ": "\\delta ",
    "ε": "\\epsilon ",
    "ρ": "\\rho ",
    "τ": "\\tau ",
    "ψ": "\\psi ",
    "Ω": "\\Omega ",
    "≤": "\\le ",
    "≥": "\\ge ",
    "≦": "\\le ",
    "≧": "\\ge ",
    "⩽": "\\le ",
    "⩾": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "∈": "\\in ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∅": "\\emptyset ",
    "Ø": "\\emptyset ",
    "ℝ": "\\mathbb{R} ",
    "ℤ": "\\mathbb{Z} ",
    "ℕ": "\\mathbb{N} ",
    "ℚ": "\\mathbb{Q} ",
    "ℂ": "\\mathbb{C} ",
    "∖": "\\setminus ",
    "°": "^\\circ ",
    "º": "^\\circ ",
    "⌊": "\\lfloor ",
    "⌋": "\\rfloor ",
    "⌈": "\\lceil ",
    "⌉": "\\rceil ",
    "≡": "\\equiv ",
    "⟨": "\\langle ",
    "⟩": "\\rangle ",
    "¢": " cents ",
    "…": "\\ldots ",
    "，": ",",
    "、": ",",
    "；": ";",
    "：": ":",
    "。": ". ",
    "（": "(",
    "）": ")",
    "“": '"',
    "”": '"',
    "’": "'",
    "′": "'",
    "∨": " or ",
    "∧": " and ",
    "∣": "|",
    "€": " EUR ",
    "£": " GBP ",
    "¥": " CNY ",
    "￥": " CNY ",
    "₹": " INR ",
}
RENAMED = [
    (r"\\(?:dfrac|tfrac|cfrac)(?![A-Za-z])", r"\\frac"),
    (
        r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg|displaystyle|textstyle|limits|bf|rm|it)(?![A-Za-z])\.?",
        "",
    ),
    (r"\\(?:leq|leqslant|leqq)(?![A-Za-z])", r"\\le"),
    (r"\\(?:geq|geqslant|geqq)(?![A-Za-z])", r"\\ge"),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\neq(?![A-Za-z])", r"\\ne"),
    (r"\{\s*([^{}\\]*?)\s*\\choose\s*([^{}\\]*?)\s*\}", r"\\binom{\1}{\2}"),
    (r"\\(?:dbinom|tbinom)(?![A-Za-z])", r"\\binom"),
    (r"\\(?:varnothing|O)(?![A-Za-z])", r"\\emptyset"),
    (r"\\(?:lbrace)(?![A-Za-z])|\\\{", "\\\\{"),
    (r"\\(?:rbrace)(?![A-Za-z])|\\\}", "\\\\}"),
    (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
    (r"\\(?:degree|textdegree)(?![A-Za-z])", r"^\\circ"),
    (r"\\(?:colon)(?![A-Za-z])", ":"),
    (r"\\(?:lor|vee)(?![A-Za-z])", " or "),
    (r"\\(?:land|wedge)(?![A-Za-z])", " and "),
    (r"\\backslash(?![A-Za-z])", r"\\setminus"),
    (r"\{:\}", ":"),
    (r"\\(?:mathbb|Bbb)\s*([A-Z])(?![A-Za-z])", r"\\mathbb{\1}"),
    (r"\\R(?![A-Za-z])", r"\\mathbb{R}"),
    (r"\\mathcal\s*\{?\s*O\s*\}?", "O"),
    (r"\\euro(?![A-Za-z])", " EUR "),
    (r"\\pounds(?![A-Za-z])", " GBP "),
    (r"\\(?:dots|cdots|dotsc)(?![A-Za-z])", r"\\ldots"),
]
WRAPPERS = (
    "text|textbf|textit|textrm|texttt|textsf|mathrm|mathbf|mathsf|mathit|mathtt"
    "|mbox|hbox|boldsymbol|bm|emph|operatorname\\*?|pmb|underline|ensuremath|mathop"
)
UNIT_FRACTION = re.compile(r"\\frac\s*\{\\(?:text|mathrm)\{([^{}]*)\}\}\s*\{\\(?:text|mathrm)\{([^{}]*)\}\}")
WRAPPED = re.compile(r"\\(%s)\s*\{([^{}]*)\}" % WRAPPERS)
SPACES = re.compile(
    r"\\(?:quad|qquad|enspace|thinspace|hspace\*?\{[^{}]*\}|hfill|newline)(?![A-Za-z])"
    r"|(?<!\\)\\[ ;:>\n]|~|[\u00a0\u2009\u202f\u2007\u3000]"
)
VULGAR = re.compile("[¼-¾⅐-⅞↉]")
MIXED = re.compile(r"(?<![\w.}^_])(\d+)\s*\\frac\s*(?:\{(\d+)\}\s*\{(\d+)\}|(\d)(\d))")
PLAIN_MIXED = re.compile(r"(?<![\w./^_}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\w/.])")
REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\overline|\\bar|\\dot|\\overset\{\\cdot\})\s*\{?(\d+)\}?((?:\d*\\dot\{?\d\}?)?)"
)
EXPONENT = re.compile(
    r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])|(?<![\w.])(\d+(?:\.\d*)?)\s*\*?\s*10\s*(?:\^|\*\*)\s*\(([+-]?\d+)\)"
)
GROUPED = re.compile(
    r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d ]*\d)(?!,\d)"
    r"|(?<![\d.,])\d{1,3}(?:(?:,|\{,\}|,\\!|\\,|\\!|\{\\,\})\d{3})+(?![\d,]*\d)"
)
OPEN, CLOSE = "([{", ")]}"


def unified(text):
    """Return a text with one spelling for signs, spaces, wrappers, numbers and fractions."""
    text = _signs(text)
    for pattern, replacement in RENAMED:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"(?<!\\)\{([.,])\}", r"{\1}", text)
    text = re.sub(r"(?<=\d)\{,\}(?=\d{3}(?!\d))", r",\\!", text)
    text = re.sub(r"(\d)\{,\}(\d)", r"\1.\2", text)
    text = re.sub(r"(?<=\d)[\u2009\u202f\u00a0](?=\d{3}(?!\d))", r"\\,", text)
    text = re.sub(r"(\d)\s*\\,\s*(?=\d{3}(?!\d))", r"\1,\\!", text)
    text = SPACES.sub(" ", text).replace("\\!", "\0").replace("\\,", " ")
    text = re.sub(r",\0(?=\d{3})|\0", lambda found: "\1" if found.group().startswith(",") else "", text)
    text = _unwrapped(UNIT_FRACTION.sub(r" \\text{\1/\2}", text))
    text = re.sub(r"(?<=\d)\s*\^?\s*\{?\s*(?:st|nd|rd|th)\b\s*\}?", "", text)
    text = text.replace("\1", "")
    text = _numbers(text)
    return re.sub(r"\s+", " ", text).strip()


def without_grouping(text):
    """Return the text with `12,345` as `12345`, if it is outside brackets that make it a list."""
    return GROUPED.sub(lambda found: re.sub(r"[^\d]", "", found.group()), text)


def pieces(text, separator):
    """Split a text where the pattern matches outside all brackets."""
    found, begin, at = [], 0, 0
    levels = depths(text)
    pattern = re.compile(separator)
    while at < len(text):
        match = pattern.match(text, at) if levels[at] == 0 else None
        if match and match.end() > at:
            found.append(text[begin:at])
            begin = at = match.end()
        else:
            at += 1
    return [*found, text[begin:]]


def depths(text):
    """Return for each character how many brackets are open around it. Half-open intervals close each other."""
    found, depth = [], 0
    at = 0
    while at < len(text):
        sign = text[at]
        width = 2 if sign == "\\" and text[at + 1 : at + 2] in ("{", "}") else 1
        sign = text[at + width - 1] if width == 2 else sign
        begin = re.match(r"\\(begin|end)\{", text[at:])
        word = re.match(r"\\[lr](angle|floor|ceil)(?![a-z])", text[at:])
        if begin:
            width = len(begin.group()) - 1
        elif word:
            width = len(word.group())
        opens = sign in OPEN or (begin and begin.group(1) == "begin") or (word and word.group()[1] == "l")
        closes = (sign in CLOSE) or (begin and begin.group(1) == "end") or (word and word.group()[1] == "r")
        if closes and not opens:
            depth = max(0, depth - 1)
        found += [depth + bool(opens or closes)] * width
        depth += bool(opens)
        at += width
    return found


def is_balanced(text):
    """Return True if braces close in order."""
    depth = 0
    for at, sign in enumerate(text):
        if sign in "{}" and text[at - 1 : at] != "\\":
            depth += 1 if sign == "{" else -1
            if depth < 0:
                return False
    return depth == 0


def bracketed(text, at):
    """Return the content of the braces that open at a place, and the place after them; the rest if they never close."""
    depth = 0
    for end in range(at, len(text)):
        if text[end] in "{}" and text[end - 1 : end] != "\\":
            depth += 1 if text[end] == "{" else -1
            if depth == 0:
                return text[at + 1 : end], end + 1
    return None, len(text)


def _signs(text):
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda found: _power_sign(found.group().translate(SUPERSCRIPTS)), text)
    text = re.sub("[₀-₉]+", lambda found: "_{%s}" % found.group().translate(SUBSCRIPTS), text)
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞↉])", " ", text)
    text = VULGAR.sub(lambda found: unicodedata.normalize("NFKC", found.group()).replace("⁄", "/"), text)
    text = re.sub(r"([√∛∜])\s*(\(|\{)?", _root_sign, text)
    text = "".join(SIGNS.get(each, each) for each in text)
    return "".join(
        unicodedata.normalize("NFKC", each)
        if "\uff01" <= each <= "\uff5e" or "\U0001d400" <= each <= "\U0001d7ff"
        else each
        for each in text
    )


def _power_sign(exponent):
    return "^" + exponent if len(exponent) == 1 else "^{%s}" % exponent


def _root_sign(found):
    index = {"√": "", "∛": "[3]", "∜": "[4]"}[found.group(1)]
    rest = found.string[found.end() :]
    if found.group(2) is None and re.match(r"\d+|[A-Za-z]", rest):
        return "\\sqrt%s " % index
    return "\\sqrt%s%s" % (index, found.group(2) or "")


def _unwrapped(text):
    for _ in range(20):
        before = text
        text = WRAPPED.sub(_content, text)
        text = re.sub(r"\\f?boxed\s*\{([^{}]*)\}", r"\1", text)
        if text == before:
            return text
    return text


def _content(found):
    name, content = found.groups()
    if name in ("mathrm", "operatorname") and re.fullmatch(
        r"(?:d|e|i|sin|cos|tan|cot|sec|csc|ln|log|exp|lcm|gcd|det|max|min|arcsin|arccos|arctan)", content.strip()
    ):
        return ("\\" if len(content.strip()) > 1 else "") + content.strip() + " "
    if re.fullmatch(r"[\d.,+\-/ ]*", content) or name in ("mathbf", "boldsymbol", "bm", "pmb"):
        return content
    return " %s " % content


def _numbers(text):
    text = re.sub(r"\\sqrt(\[\d\])? (\d+)", r"\\sqrt\1{\2}", text)
    text = re.sub(r"(?<![A-Za-z\\])sqrt\s*\[?\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![\w.])(\d*\.\d*)\((\d+)\)(?![\d(])", r"\1\\overline{\2}", text)
    text = re.sub(r"(\d*\.\d*?)(\d+?)\2{2,}\s*(?:\.\.\.|\\ldots)", r"\1\\overline{\2}", text)
    text = REPEATING.sub(_repeating, text)
    text = MIXED.sub(lambda found: _mixed(found.group(1), *[each for each in found.groups()[1:] if each]), text)
    text = PLAIN_MIXED.sub(lambda found: _mixed(*found.groups()), text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", " \\\\times ", text)
    return EXPONENT.sub(lambda found: "(%s*10^{%s})" % tuple(each for each in found.groups() if each), text)


def _mixed(whole, above, below):
    if int(above) >= int(below):
        return "%s*%s/%s" % (whole, above, below)
    return "((%s*%s+%s)/%s)" % (whole, below, above, below)


def _repeating(found):
    whole, fixed, period, rest = found.group(1) or "0", found.group(2), found.group(3), found.group(4)
    if "\\dot" in found.group() and rest:
        period += re.sub(r"\D", "", rest)
    digits = int(whole + fixed + period) - int(whole + fixed)
    return "(%d/%d)" % (digits, (10 ** len(period) - 1) * 10 ** len(fixed))
