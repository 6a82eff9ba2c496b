"""Test the parsers of the egress process with bytes of programs, and the networks of a node."""

import ssl
import struct
import time
from ipaddress import ip_address
from uuid import uuid4

import pytest

from arl_core.network.addresses import NameServer, parse_name_servers
from arl_cpu.contract.executor import NetworkVersion
from arl_cpu.egress.dns_messages import (
    NO_ERROR,
    A,
    DnsAnswer,
    DnsQuestion,
    InvalidMessage,
    encode_answer,
    encode_question,
)
from arl_cpu.egress.first_bytes import (
    InvalidRequest,
    client_hello_name,
    looks_like_http,
    parse_authority,
    parse_head,
)
from arl_cpu.egress.node_networks import NodeNetworks, missing_network_report
from arl_kit.metrics import Metrics
from support.executor import FakeExecutor
from support.sandbox import a_command, a_report, an_environment


def a_hello(name: str | None) -> bytes:
    """Return a ClientHello of OpenSSL."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """Split the handshake of one record into records of at most this size."""
    message = hello[5:]
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in parts)


def test_server_name_is_read_from_every_split() -> None:
    hello = a_hello("Good.Example")
    for data in (hello, in_records(hello, 100)):
        assert client_hello_name(data) == (True, "good.example")
        assert all(client_hello_name(data[:end]) == (False, None) for end in range(len(data)))
    assert client_hello_name(a_hello(None)) == (True, None)


def test_bytes_without_a_client_hello_are_refused() -> None:
    hello = bytearray(a_hello("good.example"))
    hello[5] = 2  # the kind of another handshake message
    for data in (b"\x17\x03\x03\0\x05hello", b"\x16\x02\0\0\x05hello", b"\x16\x03\x01\0\0", bytes(hello)):
        with pytest.raises(InvalidRequest):
            client_hello_name(data)


def test_client_hello_in_many_records_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too many records"):
        client_hello_name(in_records(a_hello("good.example"), 7))


def test_client_hello_with_two_names_is_refused() -> None:
    one = struct.pack(">HHHBH", 0, 14, 12, 0, 9) + b"a.example"
    extensions = one + one.replace(b"a.", b"b.")
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + len(extensions).to_bytes(2) + extensions
    message = b"\x01" + len(body).to_bytes(3) + body
    with pytest.raises(InvalidRequest, match="several"):
        client_hello_name(b"\x16\x03\x01" + len(message).to_bytes(2) + message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"Pypi.org:443", ("pypi.org", 443)),
        (b"pypi.org.", ("pypi.org", 80)),
        (b"[2606:4700::1]:8080", ("2606:4700::1", 8080)),
        (b"[::1]", ("::1", 80)),
    ],
)
def test_authority_has_host_and_port(text: bytes, expected: tuple[str, int]) -> None:
    assert parse_authority(text, 80) == expected


@pytest.mark.parametrize("text", [b"", b":80", b"a b:80", b"u@a.example:80", b"a.example:0", b"a.example:x", b"::1:80"])
def test_invalid_authority_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_authority(text, 80)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/2\r\nHost: a\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_ambiguous_head_is_refused(head: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_head(head)


def test_long_run_of_spaces_in_a_header_costs_little() -> None:
    """With a pattern that tries every split of the spaces, this takes minutes and stops all environments."""
    began_s = time.process_time()
    for spaces in (16_000, 60_000):
        with pytest.raises(InvalidRequest):
            parse_head(b"GET / HTTP/1.1\r\nA:" + b" " * spaces + b"\x01\r\n\r\n")
    assert time.process_time() - began_s < 5


def test_forwarded_head_closes_the_connection_and_has_no_proxy_headers() -> None:
    head = parse_head(
        b"post http://a/x HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nProxy-Authorization: s\r\n"
        b"Content-Length: 2\r\n\r\n"
    )
    assert head.encode(b"/x") == (b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"\r\n get /x HTTP/1.0", True),
        (b"PRI * HTTP/2.0\r\n", True),
        (b"GET /long", None),
        (b"GE", None),
        (b"EHLO host\r\n", False),
        (b"SSH-2.0-x\r\n", False),
        (b"\0\0\0\x08", False),
    ],
)
def test_requests_are_distinguished_from_other_protocols(data: bytes, expected: bool | None) -> None:
    assert looks_like_http(data) is expected


def test_question_and_answer_of_dns_round_trip() -> None:
    query, asked = encode_question(7, "good.example", A)
    assert DnsQuestion.parse(query) == asked
    answer = encode_answer(asked, NO_ERROR, [ip_address("1.2.3.4")])
    assert DnsAnswer.parse(answer, asked) == DnsAnswer(NO_ERROR, (ip_address("1.2.3.4"),), False)
    with pytest.raises(InvalidMessage, match="another question"):
        DnsAnswer.parse(answer, encode_question(7, "other.example", A)[1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 12,
        struct.pack(">6H", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\x01\0\x01",  # a name that points to itself
        struct.pack(">6H", 1, 0, 1, 0, 0, 0) + b"\x3fab",
        struct.pack(">6H", 1, 0, 1, 0, 0, 0) + b"\x01\x00\0\0\x01\0\x01",
        struct.pack(">6H", 1, 0x8000, 1, 0, 0, 0) + b"\x01a\0\0\x01\0\x01",
    ],
    ids=range(6),
)
def test_invalid_query_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        DnsQuestion.parse(data)


def test_name_servers_have_addresses_and_ports() -> None:
    assert parse_name_servers("1.1.1.1, 10.0.0.2:5353,::1") == (
        NameServer("1.1.1.1"),
        NameServer("10.0.0.2", 5353),
        NameServer("::1"),
    )
    with pytest.raises(ValueError, match=r"dns\.example"):
        parse_name_servers("dns.example")


async def test_node_sends_changed_networks_once() -> None:
    executor, id = FakeExecutor(), uuid4()
    networks = NodeNetworks(executor, Metrics())
    await networks.apply({id: NetworkVersion(1, "open")})
    executor.networks.clear()
    await networks.apply({id: NetworkVersion(1, "open")})
    assert executor.networks == {}
    await networks.apply({id: NetworkVersion(2, None)})
    assert executor.networks == {id: NetworkVersion(2, None)}


def test_network_is_refused_on_a_node_without_policies() -> None:
    closed, opened = a_command("true", network="none"), a_command("true", network="open")
    of_environment = a_command("true", environment=an_environment(network={"allow": ["a.example"]}))
    assert missing_network_report(closed, enforced=set()) is None
    assert missing_network_report(opened, enforced={"network"}) is None
    for spec in (opened, of_environment):
        report = missing_network_report(spec, enforced={"users"})
        assert report is not None
        assert (report.outcome, report.reason) == ("infra_error", "not_enforced")


async def test_use_of_networks_is_counted() -> None:
    metrics = Metrics()
    refusal = {"host": "a.example", "port": 443, "reason": "not_allowed", "count": 3}
    NodeNetworks(FakeExecutor(), metrics).count(a_report(network={"sent_bytes": 5, "refusals": [refusal]}))
    text = (await metrics.exposition()).decode()
    assert 'tangram_network_bytes_total{direction="sent"} 5.0' in text
    assert 'tangram_network_refusals_total{reason="not_allowed"} 3.0' in text
