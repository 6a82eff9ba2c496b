"""Program of an action: relays between the standard streams and the daemon, which runs between actions too.

It ends when the daemon has nothing left to run, or when its output comes close to the limit of an action. The
environment's processes are frozen until the next action.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

__all__ = ["connect", "main", "relay"]

MAX_OUTPUT_BYTES = 1_000_000
"""Bytes of output of one action. An action keeps 1 MiB."""
CONNECT_TIMEOUT_S = 10.0
CONNECT_PAUSE_S = 0.005
READ_BYTES = 1 << 16
SOCKET = "socket"
DIRECTORY = ".e2b"


def connect(directory: str) -> socket.socket:
    """Connect to the daemon, and start it if it does not run. Raises OSError."""
    os.chdir(directory)
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    is_started = False
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(SOCKET)
        except OSError:
            peer.close()
            if not is_started:
                _start_daemon()
                is_started = True
            if time.monotonic() > deadline:
                raise
            time.sleep(CONNECT_PAUSE_S)
        else:
            return peer


def _start_daemon() -> None:
    """Start the daemon in a session of its own. It keeps no stream of this action open."""
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    home = os.path.dirname(os.getcwd())
    os.execv(  # noqa: S606 - a shell is not needed
        sys.executable, [sys.executable, "-S", "-E", "daemon.py", home]
    )


def relay(peer: socket.socket, source: int, target: int, *, max_bytes: int = MAX_OUTPUT_BYTES) -> str:
    """Copy lines in both directions. Return the reason of the end: `idle`, `full`, `yield` or `lost`."""
    written, partial, inputs = 0, b"", [source, peer.fileno()]
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if source in ready:
            data = os.read(source, READ_BYTES)
            if not data:
                return "yield"
            peer.sendall(data)
        if peer.fileno() not in ready:
            continue
        data = peer.recv(READ_BYTES)
        if not data:
            return "lost"
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            if line == b"idle":
                return "idle"
            if written + len(line) + 1 > max_bytes:
                return "full"
            _write(target, line + b"\n")
            written += len(line) + 1


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def main() -> None:
    """Relay until the turn ends, and print its reason."""
    reason = relay(connect(DIRECTORY), 0, 1)
    _write(1, b'{"turn": "%s"}\n' % reason.encode())


if __name__ == "__main__":
    main()
