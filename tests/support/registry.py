"""A real registry (Debian's docker-registry) that tests fill over HTTP, and a proxy in front of it."""

import gzip
import hashlib
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from support.images import image_config

__all__ = ["Registry", "RegistryProxy", "a_proxy", "a_registry", "skip_without_registry"]

PROGRAM = shutil.which("docker-registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"


def skip_without_registry() -> None:
    """Skip the test if this machine has no registry."""
    if PROGRAM is None:
        pytest.skip("docker-registry is not installed: apt-get install docker-registry")


@dataclass
class Registry:
    """A registry on loopback. `start` and `stop` may be repeated; its content stays."""

    directory: Path
    port: int
    options: Mapping[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PROGRAM is not None
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self.directory / "data")}},
            "http": {"addr": self.host},
            "log": {"level": "error"},
            **self.options,
        }
        path = self.directory / "registry.json"  # JSON is YAML
        path.write_text(json.dumps(settings))
        self._process = subprocess.Popen([PROGRAM, "serve", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        transport = httpx.HTTPTransport(retries=12)  # 0, 0.5, 1, 2 … s between connection attempts
        with httpx.Client(transport=transport) as client:
            assert client.get(f"http://{self.host}/v2/").status_code in (200, 401)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def push(
        self,
        name: str,
        layers: Sequence[bytes],
        *,
        compression: str = "gzip",
        config: Mapping[str, Any] | None = None,
        platform: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> str:
        """Push an image `repository:tag` and return the digest of its manifest."""
        repository, _, tag = name.partition(":")
        pack: Callable[[bytes], bytes] = {
            "gzip": lambda layer: gzip.compress(layer, 1, mtime=0),
            "zstd": zstandard.ZstdCompressor().compress,
            "none": lambda layer: layer,
        }[compression]
        suffix = "" if compression == "none" else f"+{compression}"
        with httpx.Client(base_url=f"http://{self.host}", auth=auth) as client:
            described = image_config(layers, config) | dict(platform or {})
            manifest = {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _put_blob(client, repository, json.dumps(described).encode(), _CONFIG),
                "layers": [_put_blob(client, repository, pack(layer), _LAYER + suffix) for layer in layers],
            }
            return _put_manifest(client, repository, tag, manifest, MANIFEST)

    def push_index(self, name: str, entries: Sequence[tuple[str, Mapping[str, str]]]) -> str:
        """Push an index of manifests with their platforms."""
        repository, _, tag = name.partition(":")
        with httpx.Client(base_url=f"http://{self.host}") as client:
            manifests = []
            for digest, platform in entries:
                found = client.head(f"/v2/{repository}/manifests/{digest}", headers={"Accept": MANIFEST})
                size = int(found.headers["content-length"])
                manifests.append({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": dict(platform)})
            index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
            return _put_manifest(client, repository, tag, index, INDEX)


@contextmanager
def a_registry(directory: Path, **options: Any) -> Iterator[Registry]:
    """Run a registry. Skips the test without the program."""
    skip_without_registry()
    directory.mkdir(parents=True, exist_ok=True)
    registry = Registry(directory, _free_port(), options)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


@dataclass
class RegistryProxy:
    """A proxy in front of a registry that changes answers and counts requests."""

    port: int
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Paths and headers, names in lower case."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, part: str) -> int:
        return sum(part in path for path, _ in self.requests)


Answer = tuple[int, Mapping[str, str], bytes]
ChangeAnswer = Callable[[str, Mapping[str, str], Answer], Answer | None]


@contextmanager
def a_proxy(registry: Registry, change: ChangeAnswer = lambda path, headers, answer: answer) -> Iterator[RegistryProxy]:
    """Run a proxy. `change` gets path, headers and answer. The connection ends early where it returns None."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            proxy.requests.append((self.path, headers))
            forwarded = {name: value for name, value in headers.items() if name in ("accept", "range")}
            found = httpx.get(f"http://{registry.host}{self.path}", headers=forwarded)
            kept = {n: v for n, v in found.headers.items() if n in ("content-type", "content-range", "location")}
            answer = change(self.path, headers, (found.status_code, kept, found.content))
            if answer is None:
                half = found.content[: len(found.content) // 2]
                answer = (found.status_code, {**kept, "content-length": str(len(found.content))}, half)
                self.close_connection = True
            status, shown, body = answer
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **shown}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy = RegistryProxy(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _put_blob(client: httpx.Client, repository: str, content: bytes, media_type: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if client.head(f"/v2/{repository}/blobs/{digest}").status_code != httpx.codes.OK:
        begun = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
        upload = httpx.URL(begun.headers["location"]).copy_merge_params({"digest": digest})
        client.put(upload, content=content).raise_for_status()
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _put_manifest(client: httpx.Client, repository: str, tag: str, manifest: Mapping[str, Any], media_type: str) -> str:
    put = client.put(
        f"/v2/{repository}/manifests/{tag}",
        content=json.dumps(manifest).encode(),
        headers={"Content-Type": media_type},
    )
    return str(put.raise_for_status().headers["docker-content-digest"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
