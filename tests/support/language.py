"""Measures of the language in docstrings: their first words, coined words and sentence length. Run it for a report."""

import ast
import re
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
    print(f"{len(found)} docstrings, {len(fragments(found))} fragments")
    print(f"{len(with_person_words(found))} with words for people")
    print(f"{len(long_sentences(found))} with a sentence of more than {MAX_SENTENCE_WORDS} words")
    print(f"{total - len(missing)} of {total} public functions documented")
    for each in (*fragments(found), *long_sentences(found), *with_person_words(found)):
        print(each.where, each.text.strip().split("\n")[0][:100])
