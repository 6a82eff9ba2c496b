"""E2B's protocol without a sandbox: frames, messages of the daemon, upload forms and the paths of requests."""

import json
import struct
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from arl_gateway.compat.e2b.access import SandboxPaths
from arl_gateway.compat.e2b.envd.connect_codec import EnvelopeReader, encode_end, encode_envelope, timeout_of
from arl_gateway.compat.e2b.envd.upload_form import parse_parts
from arl_gateway.compat.e2b.errors import GuestCallError, rpc_error_body
from arl_gateway.compat.e2b.turn_output import TurnOutput, turn_error
from arl_wire.errors import NotFound, Unavailable

SANDBOX = "0" * 32


def test_envelope_reader_joins_parts_of_any_size() -> None:
    reader = EnvelopeReader()
    data = encode_envelope({"a": 1}) + encode_envelope({"b": "é"}) + encode_end()
    found = [message for byte in data for message in reader.add(bytes([byte]))]
    assert found == [{"a": 1}, {"b": "é"}]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">BI", 0, 1 << 30), "resource_exhausted"),
        (struct.pack(">BI", 1, 2) + b"{}", "unimplemented"),
        (struct.pack(">BI", 0, 2) + b"[]", "invalid_argument"),
        (struct.pack(">BI", 0, 3) + b"{x}", "invalid_argument"),
    ],
)
def test_envelope_reader_with_bad_frame_raises_the_connect_code(data: bytes, code: str) -> None:
    with pytest.raises(GuestCallError) as raised:
        EnvelopeReader().add(data)
    assert raised.value.code == code


def test_end_of_stream_carries_the_error() -> None:
    frame = encode_end({"code": "not_found", "message": "x"})
    assert frame[0] == 2
    assert json.loads(frame[5:]) == {"error": {"code": "not_found", "message": "x"}}


@pytest.mark.parametrize(("header", "seconds"), [(None, 0.0), ("0", 0.0), ("1500", 1.5)])
def test_timeout_header_is_read_in_milliseconds(header: str | None, seconds: float) -> None:
    assert timeout_of(header) == seconds


def test_timeout_header_with_text_is_refused() -> None:
    with pytest.raises(GuestCallError, match="Connect-Timeout-Ms"):
        timeout_of("soon")


def test_rpc_errors_have_words_as_codes() -> None:
    assert rpc_error_body(NotFound("x")) == {"code": "not_found", "message": "x"}
    assert rpc_error_body(Unavailable("x"))["code"] == "unavailable"
    assert rpc_error_body(GuestCallError("aborted", "x"))["code"] == "aborted"


def an_event(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\nid: 1:0:0\n\n".encode()


def test_turn_output_joins_lines_over_events_and_keeps_the_reason() -> None:
    output = TurnOutput()
    line = json.dumps({"id": "a", "result": {}}) + "\n"
    found = [*output.add(an_event("stdout", offset=0, text=line[:5]))]
    found += output.add(an_event("stdout", offset=5, text=line[5:] + '{"turn": "idle"}\n'))
    found += output.add(an_event("stderr", offset=0, text="warning"))
    assert found == [{"id": "a", "result": {}}]
    assert (output.reason, output.stderr) == ("idle", "warning")
    assert not [*output.add(b": alive\n\n")]


def test_upload_form_keeps_whole_paths() -> None:
    body = (
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="/tmp/a b/\xc3\xa9"\r\n\r\none\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="other"\r\n\r\nskipped\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\n\r\n--XX--\r\n'
    )
    assert parse_parts("multipart/form-data; boundary=XX", body) == [("/tmp/a b/é", b"one"), ("b", b"")]


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=XX"])
def test_incomplete_upload_form_is_refused(content_type: str) -> None:
    with pytest.raises(GuestCallError, match="not a complete form"):
        parse_parts(content_type, b"--XX\r\nContent-Disposition: form-data; name=file\r\n\r\n")


@pytest.mark.parametrize(
    ("path", "query", "headers", "seen"),
    [
        ("/files", "", {"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "49983"}, "/e2b/envd/files"),
        ("/files", "", {"x-access-token": "t"}, "/e2b/envd/files"),
        ("/files", "path=a&signature=v1_x", {}, "/e2b/envd/files"),
        ("/files", "", {}, "/files"),
        ("/health", "", {"host": f"49983-{SANDBOX}.sandboxes.example"}, "/e2b/envd/health"),
        ("/health", "", {"host": "gateway.example"}, "/health"),
        ("/process.Process/List", "", {}, "/e2b/envd/process.Process/List"),
        ("/execute", "", {"e2b-sandbox-id": SANDBOX, "e2b-sandbox-port": "49999"}, "/e2b/ports/49999/execute"),
        ("/a", "", {"host": f"3000-{SANDBOX}.sandboxes.example"}, f"/e2b/port-hosts/3000/{SANDBOX}/a"),
        ("/a", "", {"e2b-sandbox-id": "../x", "e2b-sandbox-port": "3/0"}, "/e2b/port-hosts/3%2F0/..%2Fx/a"),
        ("/a", "", {"x-access-token": "t", "e2b-sandbox-port": "3000"}, "/e2b/port-hosts/3000/-/a"),
        ("/v1/actions", "", {}, "/v1/actions"),
    ],
)
async def test_requests_for_a_sandbox_get_a_path_of_their_own(
    path: str, query: str, headers: dict[str, str], seen: str
) -> None:
    paths: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])

    async def receive() -> Message:
        raise AssertionError("the body is not read")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "query_string": query.encode(), "headers": encoded}
    await SandboxPaths(app)(scope, receive, send)
    assert paths == [seen]


@pytest.mark.parametrize(
    ("outcome", "code", "text"),
    [
        ("infra_error", "internal", "infra_error: infra_error (node_lost)"),
        ("cancelled", "unavailable", "was not found"),
        ("limit_exceeded", "resource_exhausted", "limit_exceeded: node_lost"),
        ("user_error", "internal", "needs python3"),
    ],
)
def test_infrastructure_errors_never_look_like_an_exit_code(outcome: str, code: str, text: str) -> None:
    output = TurnOutput()
    given = {"state": "settled", "outcome": outcome, "reason": "node_lost", "exit_code": 127}
    assert [*output.add(an_event("end", **given))] == []
    error = turn_error(output)
    assert error.code == code
    assert text in str(error)
