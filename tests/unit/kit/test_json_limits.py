"""Test the limits of JSON bodies before they are parsed."""

import json

import pytest

from arl_kit.http_server.json_limits import (
    MAX_DEPTH,
    MAX_MEMBERS,
    MAX_VALUES,
    JsonLimitExceeded,
    JsonScanner,
    JsonTooDeep,
)


def scan(document: bytes, *, step: int | None = None) -> None:
    scanner = JsonScanner()
    size = step or len(document) or 1
    for at in range(0, len(document), size):
        scanner.feed(document[at : at + size])


class TestAccepted:
    @pytest.mark.parametrize("step", [None, 1, 2, 3, 7])
    def test_brackets_and_quotes_in_strings_are_not_counted(self, step: int | None) -> None:
        text = '[{"' * 200 + "\\" * 3 + '"' + "\\\\" + "]"
        scan(json.dumps({text: [text, {"a": text}], "b": "\\"}).encode(), step=step)

    def test_program_text_with_many_commas_is_one_value(self) -> None:
        scan(json.dumps({"source": "[1, 2, {}], " * 300_000}).encode(), step=65_536)

    def test_million_token_ids_are_accepted(self) -> None:
        scan(json.dumps({"token_ids": [list(range(1000))] * 1000}).encode(), step=65_536)

    def test_depth_of_closed_arrays_is_not_added(self) -> None:
        scan(b"[" + b",".join([b"[[]]"] * 1000) + b"]")

    def test_document_that_is_not_json_is_left_to_the_parser(self) -> None:
        for content in (b"", b"]]]]", b'"', b"\\", b"\xff\xfe", b"{'a': 1}"):
            scan(content)


class TestRefused:
    @pytest.mark.parametrize("step", [None, 1, 5])
    @pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
    def test_nesting_above_the_limit_is_refused(self, opening: bytes, step: int | None) -> None:
        with pytest.raises(JsonTooDeep, match="nested levels"):
            scan(opening * (MAX_DEPTH + 1), step=step)

    @pytest.mark.parametrize("value", [b"[]", b"{}", b'""', b'"\\""'])
    def test_more_values_than_the_limit_are_refused(self, value: bytes) -> None:
        with pytest.raises(JsonLimitExceeded, match="strings, arrays and objects"):
            scan(b"[" + b",".join([value] * (MAX_VALUES + 1)), step=65_536)

    def test_object_with_more_members_than_the_limit_is_refused(self) -> None:
        inside = b",".join(b'"a%d":1' % each for each in range(MAX_MEMBERS + 1))
        scan(b"[" + inside)
        with pytest.raises(JsonLimitExceeded, match="members in each object"):
            scan(b'{"b":[1,2],' + inside + b"}", step=1000)

    def test_more_numbers_than_the_limit_are_refused(self) -> None:
        with pytest.raises(JsonLimitExceeded, match="array elements"):
            scan(b"[" + b"1," * 5_000_000, step=65_536)
