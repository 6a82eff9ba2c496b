"""The Secrets of an API server of Kubernetes, for the Job of the chart. It is a fake: it has no other objects."""

import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from arl_local.postgres.certificates import issue_server_certificate

__all__ = ["FakeSecrets", "serving_secrets"]

NAMESPACE = "rl"
TOKEN = "token-of-the-service-account"


@dataclass
class FakeSecrets:
    """Stored Secrets, and the permissions of the Role of the service account."""

    account: Path
    port: int = 0
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Names of Secrets that may not be written."""
    written: list[str] = field(default_factory=list)

    def content(self, name: str) -> dict[str, str]:
        return {key: b64decode(text).decode() for key, text in self.objects[name]["data"].items()}

    def put(self, name: str, content: Mapping[str, str]) -> None:
        self.objects[name] = {"data": {key: b64encode(text.encode()).decode() for key, text in content.items()}}

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the object, as the API server does."""
        if token != f"Bearer {TOKEN}":
            return 401, {"kind": "Status", "reason": "Unauthorized"}
        name = path.removeprefix(f"/api/v1/namespaces/{NAMESPACE}/secrets").lstrip("/")
        if method == "POST":
            secret = json.loads(body)
            name = secret["metadata"]["name"]
            if name in self.objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists"}
        elif name not in self.objects:
            return 404, {"kind": "Status", "reason": "NotFound"}
        if method == "GET":
            return 200, self.objects[name]
        if name in self.refused:
            return 403, {"kind": "Status", "reason": "Forbidden"}
        self.objects[name] = json.loads(body)
        self.written.append(name)
        return (201 if method == "POST" else 200), self.objects[name]


@contextmanager
def serving_secrets(directory: Path, address: str = "127.0.0.1") -> Iterator[FakeSecrets]:
    """Serve over TLS, with a certificate for this address. `account` is the directory of the service account in a pod.

    The address of a network that does not exist yet cannot be bound. For such an address, all are served.
    """
    files = issue_server_certificate(directory / "tls", address)
    account = directory / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(files.authority.read_bytes())
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text(NAMESPACE)
    secrets = FakeSecrets(account)

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, answer = secrets.answer(self.command, self.path, self.headers.get("authorization"), body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.handle_any()

        def do_PUT(self) -> None:
            self.handle_any()

        def do_POST(self) -> None:
            self.handle_any()

        def log_message(self, *args: object) -> None:
            del args

    server = ThreadingHTTPServer(("" if address != "127.0.0.1" else address, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    secrets.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield secrets
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
