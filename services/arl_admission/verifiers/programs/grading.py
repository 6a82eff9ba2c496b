"""Grade the last answer of a response against a reference."""

import re

from arl_admission.verifiers.programs.answers import Answer, read_answer
from arl_admission.verifiers.programs.comparison import same
from arl_admission.verifiers.programs.expressions import Unreadable
from arl_admission.verifiers.programs.final_answers import FinalAnswer, final_answer

ERRORS = (Unreadable, TypeError, ValueError, NotImplementedError, RecursionError, AttributeError, ZeroDivisionError)


def grade(response, reference, library):
    """Return True if the last answer of the response is right. Raises Unreadable for a bad reference.

    Args:
        response: Text of the policy.
        reference: Text of the right answer: plain text, LaTeX, or a solution that marks its answer.
        library: Functions `parse` and `verify` of math-verify, for what this program does not read.
    """
    wanted_text = reference_text(reference)
    wanted = _read(wanted_text) or _library_answer(wanted_text, library)
    if wanted is None:
        raise Unreadable("reference contains no readable answer")
    final = final_answer(response)
    if final is None:
        return False
    said_text, said = _said(final, wanted, library)
    if wanted.kind == "library" or said is None or said.kind == "library":
        return said_text is not None and _library_verdict(wanted_text, said_text, library)
    return wanted.text.replace(" ", "") == said.text.replace(" ", "") != "" or same(wanted, said)


def reference_text(reference):
    """Return the answer that a reference marks, or all of it."""
    text = reference.strip()
    if re.search(r"\\f?boxed|####|<answer>", text):
        marked = final_answer(text)
        return marked.text if marked else ""
    cue = re.search(r"\b(?:answer|result)\s*(?:is|:|=)\s*(.+)$", text, re.I | re.S)
    return cue.group(1) if cue else text


def _read(text):
    try:
        return read_answer(text)
    except ERRORS:
        return None


def _said(final, wanted, library):
    for text in (final.text, *final.shorter):
        said = _read(text)
        if said is not None and not (said.kind == "words" and wanted.kind != "words"):
            return text, said
    if wanted.kind == "words":
        return _words(final, wanted)
    return final.text, None


def _words(final, wanted):
    return final.text, Answer("words", final.text)


def _library_answer(text, library):
    if "\\" not in text and re.search(r"[A-Za-z]{3}", text):
        return None
    try:
        found = library.parse("\\boxed{%s}" % text, parsing_timeout=None)
    except Exception:
        return None
    return Answer("library", text) if any(not isinstance(each, str) for each in found) else None


def _library_verdict(wanted, said, library):
    parsed = [library.parse("\\boxed{%s}" % each, parsing_timeout=None) for each in (wanted, said)]
    return bool(library.verify(*parsed, timeout_seconds=None))
