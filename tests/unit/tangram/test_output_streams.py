"""Output events, split and reassembled without network or time."""

from itertools import chain

import pytest

from arl_gateway.streaming.output_events import OutputEvents
from arl_tangram.resources.output_streams import OutputData, OutputEvent, OutputEventReader

TEXT = "plain, ä€𝄞, a\u2028b\x85c, \r\n\x00\x1c and".encode() + b"\xe2\x82 \xff\xfe" + "€".encode()


def written(events: OutputEvents, portions: list[bytes], *, over: bool = True) -> bytes:
    """Return the bytes on the wire for a stream that grows by the given portions."""
    size = sum(map(len, portions))
    taken = [
        events.add_data(
            "stdout", portion, kept_bytes=size, total_bytes=size, is_complete=over and at == len(portions) - 1
        )
        for at, portion in enumerate(portions)
    ]
    return b"".join(chain.from_iterable(taken))


def read(wire: bytes, size: int) -> list[OutputEvent]:
    reader = OutputEventReader()
    return list(chain.from_iterable(reader.feed(wire[at : at + size]) for at in range(0, len(wire), size)))


def content(events: list[OutputEvent]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, OutputData))


@pytest.mark.parametrize("portion", [1, 2, 3, 7, 1000])
def test_output_bytes_are_preserved_for_any_chunk_size(portion: int) -> None:
    portions = [TEXT[at : at + portion] for at in range(0, len(TEXT), portion)]
    wire = written(OutputEvents(1), portions)
    for size in (1, 5, len(wire)):
        events = read(wire, size)
        assert content(events) == TEXT
        offsets = [event.offset for event in events if isinstance(event, OutputData)]
        assert offsets == sorted(set(offsets))


def test_incomplete_character_is_buffered_and_counted_in_offset() -> None:
    events = OutputEvents(1)
    assert content(read(written(events, [b"a\xe2\x82"], over=False), 1000)) == b"a"
    assert events.offset("stdout") == 3
    assert content(read(written(events, [b"\xac"], over=False), 1000)) == "€".encode()


def test_stream_resumes_after_the_last_event() -> None:
    first = OutputEvents(1)
    wire = written(first, ["ä".encode(), b"\xe2"], over=False)
    reader = OutputEventReader()
    list(reader.feed(wire))
    second = OutputEvents.resume_after(reader.last_id)
    assert (second.grant_no, second.offset("stdout"), second.offset("stderr")) == (1, 2, 0)


def test_comments_and_unknown_events_are_ignored() -> None:
    assert read(b": alive\n\nevent: moon\ndata: {}\nid: 1:0:0\n\n", 1000) == []


def test_partial_event_of_broken_response_is_discarded() -> None:
    reader, wire = OutputEventReader(), written(OutputEvents(1), [b"abc"])
    assert list(reader.feed(wire[:10])) == []
    reader.reset()
    assert content(list(reader.feed(wire))) == b"abc"
