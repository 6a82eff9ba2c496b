"""Grade the last answer of a response against a reference."""

import json
import re

from arl_admission.verifiers.programs.answer_kinds import SYNONYMS, Answer, normal_words
from arl_admission.verifiers.programs.answers import money_marked, read_answer
from arl_admission.verifiers.programs.comparison import same
from arl_admission.verifiers.programs.expressions import Unreadable
from arl_admission.verifiers.programs.final_answers import MOST_CHARACTERS, final_answer
from arl_admission.verifiers.programs.notation import unified
from arl_admission.verifiers.programs.quantities import MOST_WORDS

CALCULUS = re.compile(r"\\(?:int|sum|prod|lim|oint|iint)(?![A-Za-z])")
"""Signs of formulas that only math-verify reads."""
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
ERRORS = (Unreadable, TypeError, ValueError, NotImplementedError, RecursionError, AttributeError, ZeroDivisionError)


def grade(response, reference, library):
    """Return True if the last answer of the response is right. Raises Unreadable for a bad reference.

    Args:
        response: Text of the policy.
        reference: Text of the right answer: plain text, LaTeX, or a solution that marks its answer.
        library: Functions `parse` and `verify` of math-verify, for what this program does not read.
    """
    text = reference_text(reference)
    wanted = _wanted(text, library)
    final = final_answer(response)
    if final is None:
        return False
    if _same_text(text, final.text):
        return True
    if wanted.kind == "words":
        return _says(final, wanted)
    said_text, said = _said(final)
    if wanted.kind == "library" or said is None:
        is_calculus = wanted.kind == "library" or CALCULUS.search(said_text)
        return bool(is_calculus and len(said_text) <= MOST_CHARACTERS and _library_verdict(text, said_text, library))
    return same(wanted, said) or _boxes_say(final, wanted) or _has_decimal_comma(said_text, wanted)


def reference_text(reference):
    """Return the answer that a reference marks, or all of it. Raises Unreadable for JSON that is no answer."""
    text = _json_text(reference.strip())
    if re.search(r"\\f?boxed|####|<answer>", text):
        marked = final_answer(text)
        return marked.text if marked else ""
    cue = re.search(r"\b(?:answer|result)\s*(?:is|:|=)\s*(.+)$", text, re.IGNORECASE | re.DOTALL)
    return cue.group(1) if cue else text


def _json_text(text):
    """Return the text of a JSON value. An object, null, and a list of other things than numbers are no answers."""
    if re.match(r"\{\s*['\"]|\{\s*\}|\[\s*\]|\[\s*\{", text):
        raise Unreadable("reference is a JSON object or an empty list; give the text of the answer")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, dict) or each is None or each != each for each in values):
        raise Unreadable("reference is no answer in JSON: %s; give the text of the answer" % text[:100])
    if isinstance(value, list) and any(isinstance(each, str) for each in value):
        return ", ".join(str(each) for each in value)
    return value.strip() if isinstance(value, str) else text


def _wanted(text, library):
    found = _read(text) or _library_answer(text, library)
    is_prose = found is not None and found.kind == "words" and "\\" not in text and found.text not in SYNONYMS.values()
    if found is None or (is_prose and len(text.split()) > MOST_WORDS) or found.text.lower() in ("nan", "null"):
        raise Unreadable("reference contains no readable answer: %s" % text[:100])
    return found


def _read(text):
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        return read_answer(text)
    except ERRORS:
        return None


def _same_text(wanted, said):
    if max(len(wanted), len(said)) > MOST_CHARACTERS:
        return wanted == said
    texts = [re.sub(r"\s+", "", unified(money_marked(each))).strip(".") for each in (wanted, said)]
    return texts[0] == texts[1] != ""


def _said(final):
    """Return the first text of a final answer that can be read, and its answer. Words are no value."""
    for text in (final.text, *final.shorter):
        said = _read(text)
        if said is not None and said.kind != "words":
            return text, said
    said = _read(final.text)
    return final.text, said


def _says(final, wanted):
    """Return True if the last statement has the wanted words, and not their opposite too."""
    opposite = OPPOSITES.get(wanted.text)
    if opposite is not None:
        found = set()
        for negation, word in re.findall(r"(\bnot\s+)?\b(%s|%s)\b" % (wanted.text, opposite), final.text.lower()):
            found.add((opposite if word == wanted.text else wanted.text) if negation else word)
        if found:
            return found == {wanted.text}
    for text in (final.text[-MOST_CHARACTERS:], *(each[-MOST_CHARACTERS:] for each in final.shorter)):
        said = _read(text)
        if said is not None and same(wanted, said):
            return True
        after = re.split(r"\b(?:is|are|was)\s+(?:the\s+)?", text)[-1]
        if normal_words(unified(after)) == wanted.text:
            return True
    return False


def _boxes_say(final, wanted):
    """Return True if as many boxes as a list has parts say these parts, each in a statement of its own."""
    if wanted.kind != "list" or len(final.boxes) != len(wanted.parts):
        return False
    said = _read(", ".join(final.boxes))
    return said is not None and said.kind == "list" and same(wanted, said)


def _has_decimal_comma(text, wanted):
    """Return True for `3,5` as the answer 3.5, which is how many languages write it."""
    match = re.fullmatch(r"\s*\$?\s*(-?\d+),(\d+)\s*\$?\s*", text)
    is_decimal = wanted.kind == "number" and wanted.value.is_Rational and not wanted.value.is_Integer
    said = _read("%s.%s" % match.groups()) if match and is_decimal else None
    return said is not None and same(wanted, said)


def _library_answer(text, library):
    if "\\" not in text and re.search(r"[A-Za-z]{3}", text):
        return None
    found = _library_values(text, library)
    return Answer("library", text) if any(not isinstance(each, str) for each in found) else None


def _library_verdict(wanted, said, library):
    parsed = [_library_values(each, library) for each in (wanted, said)]
    return bool(library.verify(*parsed, timeout_seconds=None, raise_on_error=True))


def _library_values(text, library):
    """Parse without the library's own time limit, which is the end of this process. Its errors are no wrong answers."""
    return library.parse("\\boxed{%s}" % text, parsing_timeout=None, raise_on_error=True)
