"""Limits of the language that users and developers read. `python tests/support/language.py` prints the measures."""

from support.language import (
    all_docstrings,
    all_visible_texts,
    fragments,
    long_sentences,
    undocumented_functions,
    visible_faults,
    with_person_words,
)
from support.structure import source_modules

MIN_DOCUMENTED_SHARE = 0.9


def test_docstrings_start_with_a_noun_phrase_or_a_verb() -> None:
    found = all_docstrings()
    started_badly = [each.where for each in fragments(found)]
    assert len(started_badly) <= len(found) // 100, started_badly


def test_docstrings_use_no_coined_words_for_processes() -> None:
    assert len(found := [each.where for each in with_person_words(all_docstrings())]) <= 3, found


def test_sentences_of_docstrings_are_short() -> None:
    assert [each.where for each in long_sentences(all_docstrings())] == []


def test_texts_that_users_see_start_with_a_noun_phrase_or_a_verb() -> None:
    assert [f"{each.where}: {each.text}" for each in visible_faults(all_visible_texts())] == []


def test_public_functions_are_documented() -> None:
    missing, total = undocumented_functions(source_modules())
    assert total - len(missing) >= MIN_DOCUMENTED_SHARE * total, missing
