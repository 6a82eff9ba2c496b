"""The text of a followed action: split characters, invalid bytes, new attempts."""

import pytest

from arl_tangram import OutputData, OutputEnd, OutputRestart, ValidationFailed
from arl_tangram.resources.output_streams import OutputDecoder


def data(content: bytes, stream: str = "stdout") -> OutputData:
    return OutputData(stream, 0, content)  # type: ignore[arg-type]


def test_split_character_is_decoded_as_one() -> None:
    decoder = OutputDecoder(None)
    assert [decoder.decode(data(b"\xc3")), decoder.decode(data(b"\xa9"))] == ["", "é"]


def test_end_returns_incomplete_bytes() -> None:
    decoder = OutputDecoder("stdout")
    assert decoder.decode(data(b"a\xe2\x82")) == "a"
    assert decoder.decode(OutputEnd.model_construct()) == "\\xe2\\x82"


def test_new_attempt_discards_incomplete_bytes() -> None:
    decoder = OutputDecoder(None)
    decoder.decode(data(b"\xe2\x82"))
    decoder.decode(OutputRestart.model_construct())
    assert decoder.decode(data(b"ab")) == "ab"


def test_other_stream_is_left_out_and_unknown_stream_is_refused() -> None:
    assert OutputDecoder("stdout").decode(data(b"x", "stderr")) == ""
    with pytest.raises(ValidationFailed, match="stream"):
        OutputDecoder("out")  # type: ignore[arg-type]
