"""Attacks on a gateway, each in a process of its own that runs until it gets SIGTERM.

`python -m arl_bench.control_plane.attack_load ATTACK ADDRESS [KEY ENVIRONMENT]`. Only `archives` needs a key. The
program writes a line when the attack begins, and an `AttackReport` as JSON when it ends.
"""

import gzip
import http.client
import io
import json
import os
import resource
import signal
import socket
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

__all__ = ["ATTACKS", "BEGIN_LINE", "AttackProgram", "AttackReport"]

BEGIN_LINE = "attacking"
BODY_BYTES = 24 << 20
BODY_CLIENTS = 4
CONNECTIONS = 4000
MIN_CONNECTIONS = 100
ARCHIVE_CLIENTS = 4
HEADER_BYTES = 512 << 10
TIMEOUT_S = 30.0


@dataclass(slots=True)
class AttackReport:
    """What an attack did."""

    sent: int = 0
    """Number of requests that were begun on an open connection."""
    responses: Counter[str] = field(default_factory=Counter)
    """Number of requests by status, or `closed`, `timeout` and `open` without one. `not_connected` were not sent."""
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def add_sent(self) -> None:
        """Count a request that begins."""
        with self._lock:
            self.sent += 1

    def add_response(self, kind: str) -> None:
        """Count the end of a request."""
        with self._lock:
            self.responses[kind] += 1

    def to_json(self) -> str:
        """Return the report for `from_json`."""
        with self._lock:
            return json.dumps({"sent": self.sent, "responses": self.responses})

    @classmethod
    def from_json(cls, text: str) -> "AttackReport":
        """Parse the output of an attack. Raises `ValueError`."""
        found = json.loads(text)
        return cls(found["sent"], Counter(found["responses"]))

    def __iadd__(self, other: "AttackReport") -> "AttackReport":
        self.sent += other.sent
        self.responses += other.responses
        return self


@dataclass(frozen=True, slots=True)
class AttackProgram:
    """An attack, and how to see that it took place."""

    run: Callable[..., None]
    """Called with the report, the address and the further arguments. It never returns."""
    min_sent: int
    """Requests that each attack sends within seconds, also on a busy machine."""
    failed_statuses: frozenset[str]
    """Statuses of requests that did not reach the attacked part of the gateway."""

    def fault(self, report: AttackReport) -> str | None:
        """Return the reason why the attack did not take place, or None."""
        failed = sum(report.responses[status] for status in self.failed_statuses)
        if report.sent - failed >= self.min_sent:
            return None
        responses = ", ".join(f"{kind}: {count}" for kind, count in sorted(report.responses.items())) or "none"
        return f"{report.sent} requests were sent, {self.min_sent} expected; responses: {responses}"


def send_bodies(report: AttackReport, address: str) -> None:
    """Send large bodies of nested lists without a key, on several connections."""
    body = b"[" * (BODY_BYTES // 2) + b"]" * (BODY_BYTES // 2)
    headers = {"Content-Type": "application/json"}
    _repeat(BODY_CLIENTS, lambda: _request(report, address, "POST", "/v1/actions", body, headers))


def open_half_requests(report: AttackReport, address: str) -> None:
    """Send half of a request on thousands of connections, and replace the oldest connection again and again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, CONNECTIONS + 100)), hard))
    connections: list[socket.socket] = []
    try:
        while True:
            try:
                connections.append(_half_a_request(address))
                report.add_sent()
            except OSError:
                report.add_response("not_connected")
            if len(connections) > CONNECTIONS:
                report.add_response(_close(connections.pop(0)))
    finally:
        for connection in connections:
            report.add_response(_close(connection))


def upload_archives(report: AttackReport, address: str, key: str, environment: str) -> None:
    """Upload small archives whose headers are slow to parse for a parser that scans to their end for each record."""
    content = _slow_archive()
    path, headers = f"/v1/environments/{environment}/archive", {"Authorization": f"Bearer {key}"}
    _repeat(ARCHIVE_CLIENTS, lambda: _request(report, address, "PUT", path, content, headers))


ATTACKS: dict[str, AttackProgram] = {
    "bodies": AttackProgram(send_bodies, BODY_CLIENTS, frozenset({"404", "405"})),
    "connections": AttackProgram(open_half_requests, MIN_CONNECTIONS, frozenset()),
    "archives": AttackProgram(upload_archives, ARCHIVE_CLIENTS, frozenset({"401", "403", "404", "405"})),
}


def _request(report: AttackReport, address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.connect()
    except OSError:
        report.add_response("not_connected")
        return
    report.add_sent()
    try:
        # The gateway may answer before the body ends, and close the connection.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        report.add_response(str(response.status))
    except TimeoutError:
        report.add_response("timeout")
    except (OSError, http.client.HTTPException):
        report.add_response("closed")
    finally:
        connection.close()


def _half_a_request(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.sendall(b"POST /v1/actions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    return connection


def _close(connection: socket.socket) -> str:
    """Close a connection. Return the status that it received, or `closed` or `open`."""
    with connection:
        connection.setblocking(False)
        try:
            received = connection.recv(64).split()
        except BlockingIOError:
            return "open"
        except OSError:
            return "closed"
        return received[1].decode("ascii", "replace") if len(received) > 1 else "closed"


def _slow_archive() -> bytes:
    record = b"4 a\n"
    content = record * (HEADER_BYTES // len(record)) + b"11 end=yes\n"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(content)
    with io.BytesIO() as target, tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(header, io.BytesIO(content))
        archive.addfile(tarfile.TarInfo("file"))
        archive.close()
        return gzip.compress(target.getvalue())


def _repeat(threads: int, work: Callable[[], None]) -> None:
    def run() -> None:
        while True:
            work()

    running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _stop(*_: object) -> NoReturn:
    raise SystemExit(0)


def _main(name: str, *arguments: str) -> None:
    os.nice(19)  # attackers are other machines; their own work must not slow this one
    report = AttackReport()
    signal.signal(signal.SIGTERM, _stop)
    try:
        print(BEGIN_LINE, flush=True)
        ATTACKS[name].run(report, *arguments)
    finally:
        print(report.to_json(), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
