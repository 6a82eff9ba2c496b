"""Limits of the language in docstrings. `python tests/support/language.py` prints the measures."""

from support.language import all_docstrings, fragments, long_sentences, with_person_words


def test_docstrings_start_with_a_noun_phrase_or_a_verb() -> None:
    found = all_docstrings()
    started_badly = [each.where for each in fragments(found)]
    assert len(started_badly) <= len(found) // 100, started_badly


def test_docstrings_use_no_coined_words_for_processes() -> None:
    assert len(found := [each.where for each in with_person_words(all_docstrings())]) <= 3, found


def test_sentences_of_docstrings_are_short() -> None:
    assert [each.where for each in long_sentences(all_docstrings())] == []
