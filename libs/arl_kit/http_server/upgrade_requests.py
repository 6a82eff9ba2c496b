"""Requests that offer another protocol, such as HTTP/2: serve them by HTTP/1.1, with their body.

An application may take over a connection that offers WebSocket or plain TCP. The server parses no frames.

Java's HTTP client sends `Upgrade: h2c` with its first request. RFC 9110 (section 7.8) lets a server ignore the field.
The parser of uvicorn ends such a request after its header, and uvicorn drops the body.
"""

import sys
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from arl_kit.http_server.takeover import TAKEOVER_PROTOCOLS, Streams, add_takeover, open_streams

__all__ = ["UpgradeIgnoringProtocol"]

UPGRADE_FIELDS = (b"upgrade", b"http2-settings")
BODY_FIELDS = (b"content-length", b"transfer-encoding")


class UpgradeIgnoringProtocol(HttpToolsProtocol):
    """Uvicorn's connection without other protocols. It parses such a request again without the fields of the offer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._received: bytes | memoryview = b""
        self._repeated: tuple[bytes, memoryview] | None = None
        self._takeover: bytearray | None = None
        """Bytes after a request whose connection the application may take over."""

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse the data. Each offer in it ends the parser's work, so the rest is parsed after it."""
        if self._takeover is not None:
            self._takeover += data
            self.flow.pause_reading()
            return
        self._received = data
        super().data_received(data)  # type: ignore[arg-type]
        while self._repeated is not None:
            (head, rest), self._repeated = self._repeated, None
            self._received = rest
            # The old parser would ignore all data after a request that closes the connection.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            super().data_received(head)
            super().data_received(rest)  # type: ignore[arg-type]

    def on_headers_complete(self) -> None:
        """Start the request, except if its header is parsed again."""
        if self._is_takeover():
            # Until it is taken over, read no more: the parser has ended with the header.
            self._takeover = bytearray()
            scope: Scope = self.scope  # type: ignore[assignment]
            add_takeover(scope, self._take_over)
            super().on_headers_complete()
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        elif not self._is_offer():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of the body, except if the header is parsed again."""
        if self._takeover is not None or not self._is_offer():
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Prepare the header without the offer. Uvicorn calls this method while it handles the parser's exception."""
        offer = sys.exception()
        if not isinstance(offer, httptools.HttpParserUpgrade):
            return
        if self._takeover is not None:
            self._takeover += memoryview(self._received)[offer.args[0] :]
        elif self._is_offer():
            version = self.parser.get_http_version().encode()
            lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
            lines += [b"%s: %s" % field for field in self.headers if field[0] not in UPGRADE_FIELDS]
            self._repeated = b"\r\n".join([*lines, b"", b""]), memoryview(self._received)[offer.args[0] :]

    def _take_over(self) -> Streams:
        """Detach the connection from HTTP and return its streams."""
        self.cycle.disconnected = True
        streams = open_streams(self.transport, self, bytes(self._takeover or b""))
        if not self.transport.is_closing():
            self.flow.resume_reading()
        return streams

    def _is_takeover(self) -> bool:
        fields = dict(self.headers)
        is_wanted = self._is_offer() and fields.get(b"upgrade", b"").lower() in TAKEOVER_PROTOCOLS
        return is_wanted and not any(name in fields for name in BODY_FIELDS)

    def _is_offer(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
