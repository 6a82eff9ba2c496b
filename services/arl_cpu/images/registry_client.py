"""A client of the OCI distribution API: manifests and blobs of one image, over mirrors and with retries."""

import hashlib
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx

from arl_core.images.pull_planning import ImageFailure
from arl_core.images.references import ImageReference
from arl_cpu.images.registries import RegistryEndpoint

__all__ = ["PullFailed", "RegistryClient"]

_MANIFEST_TYPES = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_REDIRECTS = 5
_FIRST_WAIT_S, _MAX_WAIT_S = 0.25, 10.0
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_Value = TypeVar("_Value")


class PullFailed(Exception):
    """An image that cannot be pulled, with the reason. The message never contains a secret."""

    def __init__(self, reason: ImageFailure, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.reason, self.retry_after_s = reason, retry_after_s


class RegistryClient:
    """The requests for one image. Threads may share it.

    `give_up_s`: seconds without any byte after which an unavailable registry is a failure. `on_wait` receives a
    message before each retry.
    """

    def __init__(
        self,
        image: ImageReference,
        endpoints: tuple[RegistryEndpoint, ...],
        *,
        give_up_s: float,
        on_wait: Callable[[str], None],
    ) -> None:
        if not endpoints:
            raise PullFailed(
                ImageFailure.UNAUTHORIZED, f"registry {image.registry} is not in the file of registries of this node"
            )
        self._image, self._give_up_s, self._on_wait = image, give_up_s, on_wait
        self._connections = [_RegistryConnection(image, each) for each in endpoints]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    def manifest(self, version: str) -> tuple[bytes, str]:
        """Return a manifest or index and its digest. Raises PullFailed."""

        def request(connection: "_RegistryConnection") -> tuple[bytes, str]:
            with connection.get(f"manifests/{version}", {"Accept": _MANIFEST_TYPES}) as response:
                body = _read_bounded(response)
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            if version.startswith("sha256:") and digest != version:
                raise PullFailed(ImageFailure.INVALID, f"manifest {version} is damaged: its digest is {digest}")
            return body, digest

        return self._try_all(request)

    def small_blob(self, digest: str) -> bytes:
        """Return a blob of at most 4 MiB. Raises PullFailed."""

        def request(connection: "_RegistryConnection") -> bytes:
            with connection.get(f"blobs/{digest}", {}) as response:
                body = _read_bounded(response)
            if (found := f"sha256:{hashlib.sha256(body).hexdigest()}") != digest:
                raise PullFailed(ImageFailure.INVALID, f"blob {digest} is damaged: its digest is {found}")
            return body

        return self._try_all(request)

    def download(self, digest: str, size: int, target: Path, received: Callable[[int], None]) -> None:
        """Download a blob and continue an earlier download of it. The caller verifies the digest.

        `received` is called with the number of new bytes, which is negative if a download begins again.
        """

        def request(connection: "_RegistryConnection") -> None:
            with open(target, "ab") as file:
                _download(connection, digest, size, file, received)

        with open(target, "ab") as file:
            if file.tell() > size:
                file.truncate(0)
        self._try_all(request, progress=lambda: target.stat().st_size)

    def _try_all(
        self, request: "Callable[[_RegistryConnection], _Value]", progress: Callable[[], int] = lambda: 0
    ) -> _Value:
        """Try mirrors and registry in order, and again after a pause while they are unavailable."""
        wait_s, last, since = _FIRST_WAIT_S, progress(), time.monotonic()
        while True:
            failures: list[PullFailed] = []
            for connection in self._connections:
                try:
                    return request(connection)
                except PullFailed as failed:
                    failures.append(failed)
            unavailable = [each for each in failures if each.reason is ImageFailure.REGISTRY_UNAVAILABLE]
            if failures[-1] not in unavailable:  # the registry itself answered
                raise failures[-1]
            if (now := progress()) != last:
                wait_s, last, since = _FIRST_WAIT_S, now, time.monotonic()
            if time.monotonic() - since + wait_s > self._give_up_s:
                raise failures[-1]
            self._on_wait(str(failures[-1]))
            time.sleep(max(wait_s, min(failures[-1].retry_after_s, 60.0)))
            wait_s = min(wait_s * 2, _MAX_WAIT_S)


class _RegistryConnection:
    """The requests to one endpoint, with its authentication."""

    def __init__(self, image: ImageReference, endpoint: RegistryEndpoint) -> None:
        self._image, self._endpoint = image, endpoint
        self._base = f"{endpoint.url}/v2/{image.repository}/"
        self._authorization = f"Bearer {endpoint.token}" if endpoint.token is not None else None
        verify = ssl.create_default_context(cafile=str(endpoint.ca_file)) if endpoint.ca_file is not None else True
        self._client = httpx.Client(timeout=_TIMEOUT, proxy=endpoint.proxy, verify=verify, follow_redirects=False)

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def get(self, path: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send a request and yield the response with status 200 or 206. Raises PullFailed."""
        try:
            with self._send(path, headers, may_authenticate=True) as response:
                yield response
        except (httpx.TransportError, httpx.InvalidURL) as error:
            what = f"registry {self._host} does not respond: {type(error).__name__}"
            raise PullFailed(ImageFailure.REGISTRY_UNAVAILABLE, what) from None

    @contextmanager
    def _send(self, path: str, headers: dict[str, str], *, may_authenticate: bool) -> Iterator[httpx.Response]:
        url = self._base + path
        for _ in range(_MAX_REDIRECTS + 1):
            is_own = urlsplit(url).netloc == urlsplit(self._base).netloc
            own = {"Authorization": self._authorization} if is_own and self._authorization is not None else {}
            with self._client.stream("GET", url, headers={"Accept-Encoding": "identity", **headers, **own}) as response:
                if response.is_redirect:
                    url = self._redirected(url, response)
                    continue
                if response.status_code == httpx.codes.UNAUTHORIZED and may_authenticate and is_own:
                    challenge = response.headers.get("www-authenticate", "")
                    break
                self._check_status(response, path)
                yield response
                return
        else:
            raise PullFailed(ImageFailure.INVALID, f"registry {self._host} redirects in a circle")
        self._authenticate(challenge)
        with self._send(path, headers, may_authenticate=False) as response:
            yield response

    def _redirected(self, url: str, response: httpx.Response) -> str:
        target = str(urljoin(url, response.headers.get("location", "")))
        scheme = urlsplit(target).scheme
        if scheme != "https" and not (scheme == "http" and self._endpoint.allows_plain_http):
            raise PullFailed(ImageFailure.INVALID, f"registry {self._host} redirects to an address without TLS")
        return target

    def _check_status(self, response: httpx.Response, path: str) -> None:
        status = response.status_code
        if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return
        about = f"registry {self._host} answers {status} for {self._image.repository}/{path}"
        match status:
            case 401 | 403:
                raise PullFailed(ImageFailure.UNAUTHORIZED, f"{about}; check its credentials in the file of registries")
            case 404:
                raise PullFailed(ImageFailure.NOT_FOUND, f"{about}; check the name of the image")
            case 408 | 429:
                after = response.headers.get("retry-after", "")
                retry_after_s = float(after) if after.isdigit() else 0.0
                raise PullFailed(ImageFailure.REGISTRY_UNAVAILABLE, about, retry_after_s=retry_after_s)
        unavailable = status >= httpx.codes.INTERNAL_SERVER_ERROR
        raise PullFailed(ImageFailure.REGISTRY_UNAVAILABLE if unavailable else ImageFailure.INVALID, about)

    def _authenticate(self, challenge: str) -> None:
        """Set the authorization that a challenge demands."""
        scheme, _, rest = challenge.partition(" ")
        refused = f"registry {self._host} demands authentication; add its credentials to the file of registries"
        if scheme.lower() == "basic" and self._endpoint.basic is not None:
            self._authorization = _basic_header(self._endpoint.basic)
            return
        fields = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in fields or self._endpoint.token is not None:
            raise PullFailed(ImageFailure.UNAUTHORIZED, refused)
        realm = fields.pop("realm")
        if urlsplit(realm).scheme != "https" and not self._endpoint.allows_plain_http:
            raise PullFailed(ImageFailure.INVALID, f"registry {self._host} names a token server without TLS")
        fields.setdefault("scope", f"repository:{self._image.repository}:pull")
        response = self._client.get(
            realm,
            params={name: value for name, value in fields.items() if name in ("service", "scope")},
            headers={"Authorization": _basic_header(self._endpoint.basic)} if self._endpoint.basic else {},
        )
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            what = f"token server of registry {self._host} answers {response.status_code}"
            raise PullFailed(ImageFailure.REGISTRY_UNAVAILABLE, what)
        token = _token_of(response)
        if token is None:
            raise PullFailed(ImageFailure.UNAUTHORIZED, refused)
        self._authorization = f"Bearer {token}"

    @property
    def _host(self) -> str:
        return urlsplit(self._base).netloc


def _download(
    connection: _RegistryConnection, digest: str, size: int, file: BinaryIO, received: Callable[[int], None]
) -> None:
    start = file.tell()
    if start == size:
        return  # a range that begins at the end is an error
    with connection.get(f"blobs/{digest}", {"Range": f"bytes={start}-"} if start else {}) as response:
        if start and response.status_code != httpx.codes.PARTIAL_CONTENT:
            file.truncate(0)
            received(-start)
        for block in response.iter_raw():
            if file.tell() + len(block) > size:
                received(-file.tell())
                file.truncate(0)
                raise PullFailed(ImageFailure.INVALID, f"blob {digest} has more than the {size} bytes of its manifest")
            file.write(block)
            received(len(block))
        file.flush()
    if file.tell() < size:
        raise PullFailed(ImageFailure.REGISTRY_UNAVAILABLE, f"download of blob {digest} ended early")


def _read_bounded(response: httpx.Response) -> bytes:
    body = bytearray()
    for block in response.iter_raw():
        body += block
        if len(body) > _MAX_MANIFEST_BYTES:
            raise PullFailed(ImageFailure.INVALID, f"manifest or configuration is larger than {len(body) >> 20} MiB")
    return bytes(body)


def _basic_header(credentials: tuple[str, str]) -> str:
    request = httpx.Request("GET", "http://registry")
    flow = httpx.BasicAuth(*credentials).auth_flow(request)
    return next(flow).headers["Authorization"]


def _token_of(response: httpx.Response) -> str | None:
    if response.status_code != httpx.codes.OK:
        return None
    try:
        content = response.json()
    except ValueError:
        return None
    token = content.get("token") or content.get("access_token") if isinstance(content, dict) else None
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else None
