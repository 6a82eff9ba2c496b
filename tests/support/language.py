"""Measures of the language in docstrings, descriptions, help texts and error messages. Run it for a report.

They measure first words, coined words, sentence length and the number of documented functions.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from support.structure import SourceModule, source_modules

FRAGMENT_OPENERS = frozenset(
    [
        "what",
        "who",
        "whoever",
        "whose",
        "where",
        "whether",
        "which",
        "that",
        "those",
        "of",
        "by",
        "with",
        "without",
        "beside",
        "likewise",
        "whatever",
    ]
)
"""First words of a sentence fragment. A docstring starts with a noun phrase or an imperative verb."""
PERSON_WORDS = re.compile(r"\b(whoever|nobody|somebody|everybody|whatever|anew)\b", re.IGNORECASE)
"""Words for people, used of processes, and words that technical English does not use."""
MAX_SENTENCE_WORDS = 40
VISIBLE_OPENERS = frozenset(["what", "who", "whoever", "whose", "where", "of", "by", "with", "beside", "that", "those"])
"""First words that no description, help text or error message has."""
VISIBLE_WORDS = re.compile(
    r"\b(beside|nobody|somebody|whoever|there is no|there are no|anew|hint|heard)\b", re.IGNORECASE
)
"""Words that no description, help text or error message contains."""
MESSAGE_NAMES = frozenset(["message", "detail"])
"""Names of variables and parameters that contain error messages."""
ERROR_CLASS = re.compile(r"(Error|Exception|Failed|Refused|Unavailable|NotFound|Conflict|Forbidden|Unprocessable)$")
"""Names of classes whose arguments are error messages, also if the error is not raised at once."""
LOG_METHODS = frozenset(["debug", "info", "warning", "error", "exception", "critical"])
METRIC_METHODS = frozenset(["counter", "gauge", "histogram", "gauge_function"])


@dataclass(frozen=True)
class Docstring:
    """One docstring: of a module, a class, a function, or below a constant or field."""

    where: str
    text: str

    @property
    def first_word(self) -> str:
        found = re.match(r"[A-Za-z]+", self.text.strip())
        return found[0].lower() if found else ""


def docstrings(module: SourceModule) -> Iterator[Docstring]:
    """Yield every docstring of a module, attribute docstrings included."""
    for node in ast.walk(module.tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for position, statement in enumerate(body):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            text = statement.value.value
            if isinstance(text, str) and (position == 0 or isinstance(body[position - 1], ast.Assign | ast.AnnAssign)):
                yield Docstring(f"{module.name}:{statement.lineno}", text)


def all_docstrings() -> list[Docstring]:
    return [each for module in source_modules() for each in docstrings(module)]


def fragments(found: list[Docstring]) -> list[Docstring]:
    """Return the docstrings that start like a sentence fragment."""
    return [each for each in found if each.first_word in FRAGMENT_OPENERS]


def with_person_words(found: list[Docstring]) -> list[Docstring]:
    return [each for each in found if PERSON_WORDS.search(each.text)]


def long_sentences(found: list[Docstring]) -> list[Docstring]:
    """Return the docstrings that hold a sentence of more than 40 words."""
    return [each for each in found if any(len(s.split()) > MAX_SENTENCE_WORDS for s in _sentences(each.text))]


def _sentences(text: str) -> list[str]:
    paragraphs = re.split(r"\n\s*\n|\n\s*[-*│├└`]", text)
    return [sentence for paragraph in paragraphs for sentence in re.split(r"[.:;](?:\s|$)", paragraph)]


@dataclass(frozen=True)
class VisibleText:
    """A text that users see: a description, a help text, an error message, a log message or a metric's help."""

    where: str
    text: str

    @property
    def package(self) -> str:
        return self.where.partition(".")[0]

    @property
    def is_fragment(self) -> bool:
        first = re.match(r"[A-Za-z]+", self.text)
        return first is not None and first[0].lower() in VISIBLE_OPENERS

    @property
    def has_forbidden_words(self) -> bool:
        return VISIBLE_WORDS.search(re.sub(r"`[^`]*`", "", self.text)) is not None  # code is quoted as it is


def visible_texts(module: SourceModule) -> Iterator[VisibleText]:
    """Yield the texts of a module that users see. Values of an f-string are left out."""
    for node in ast.walk(module.tree):
        for source in _visible_sources(node):
            for text in _texts_of(source):
                yield VisibleText(f"{module.name}:{source.lineno}", text)


def _visible_sources(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from node.exc.args
    if isinstance(node, ast.Call):
        names = {"description", "help"} | MESSAGE_NAMES
        yield from (keyword.value for keyword in node.keywords if keyword.arg in names)
        yield from _message_arguments(node)
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id in MESSAGE_NAMES for target in node.targets
    ):
        yield node.value


def _message_arguments(call: ast.Call) -> list[ast.expr]:
    if isinstance(call.func, ast.Name):
        return call.args if ERROR_CLASS.search(call.func.id) else []
    if isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS:
        return call.args[:1]
    if isinstance(call.func, ast.Attribute) and call.func.attr in METRIC_METHODS:
        return call.args[1:2]
    return []


def _texts_of(source: ast.expr) -> Iterator[str]:
    """Yield the texts of an expression: of a literal, of both cases of a condition, of both parts of a sum."""
    if isinstance(source, ast.Constant) and isinstance(source.value, str):
        yield source.value
    elif isinstance(source, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in source.values)
    elif isinstance(source, ast.IfExp):
        yield from (text for part in (source.body, source.orelse) for text in _texts_of(part))
    elif isinstance(source, ast.BinOp | ast.BoolOp):
        parts = source.values if isinstance(source, ast.BoolOp) else [source.left, source.right]
        yield from (text for part in parts for text in _texts_of(part))


def all_visible_texts() -> list[VisibleText]:
    return list(dict.fromkeys(each for module in source_modules() for each in visible_texts(module)))


def visible_faults(found: list[VisibleText]) -> list[VisibleText]:
    """Return the texts that start like a fragment or contain a forbidden word."""
    return [each for each in found if each.is_fragment or each.has_forbidden_words]


def undocumented_functions(modules: list[SourceModule]) -> tuple[list[str], int]:
    """Return public functions and methods without a docstring, and the number of all public ones."""
    missing, total = [], 0
    for module in modules:
        for owner in [module.tree, *(n for n in module.tree.body if isinstance(n, ast.ClassDef))]:
            if isinstance(owner, ast.ClassDef) and owner.name.startswith("_"):
                continue
            for node in owner.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                    total += 1
                    if ast.get_docstring(node) is None:
                        missing.append(f"{module.name}:{node.name}")
    return missing, total


if __name__ == "__main__":
    found = all_docstrings()
    missing, total = undocumented_functions(source_modules())
    visible = all_visible_texts()
    faults = visible_faults(visible)
    print(f"{len(found)} docstrings, {len(fragments(found))} fragments")
    print(f"{len(with_person_words(found))} with words for people")
    print(f"{len(long_sentences(found))} with a sentence of more than {MAX_SENTENCE_WORDS} words")
    print(f"{total - len(missing)} of {total} public functions documented")
    by_package = dict(Counter(each.package for each in faults))
    print(f"{len(visible)} descriptions, help texts and messages; faults by package: {by_package}")
    for each in (*fragments(found), *long_sentences(found), *with_person_words(found), *faults):
        print(each.where, each.text.strip().split("\n")[0][:100])
