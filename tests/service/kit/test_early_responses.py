"""Test that a client receives a response sent before the request body ends."""

import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from arl_kit.app import create_app
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import TokenIssuer, pairwise_key
from arl_kit.settings import ServiceSettings
from arl_wire.errors import Conflict

TOKEN = "a" * 32
CHUNKS = 128
LATEST_S = 20.0


@contextlib.contextmanager
def refusing(answered: threading.Event) -> Iterator[str]:
    """Run a service that refuses a body after its first bytes and sets `answered`; yield its URL."""
    accept = {"gateway": SecretStr(pairwise_key(TOKEN, "node/n"))}
    secrets = {"database_url": SecretStr("postgresql://none"), "service_token": SecretStr(TOKEN)}
    hops = InternalApi(ServiceSettings(port=1, caller_keys=accept, **secrets), "gateway", audience="node/n")

    async def serve(request: Request) -> Response:
        async for _ in request.stream():
            raise Conflict("'f' does not fit")
        raise AssertionError("nothing was sent")

    hops.add_stream("/internal/transfers", serve)
    app = create_app(title="t", lifespan=lifespan, ready=ready, max_body_bytes=16 << 20, metrics=Metrics())
    mount_internal_apis(app, hops)

    async def telling(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                answered.set()

        await app(scope, receive, sent)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(telling, http="httptools", log_config=None))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/internal/transfers"
        finally:
            server.should_exit = True
            serving.join()


@contextlib.asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:
    yield


async def ready(within_s: float) -> str | None:
    return None


async def archive(answered: threading.Event) -> AsyncIterator[bytes]:
    """Yield a body whose sender continues only after the response has been sent."""
    yield bytes(1 << 16)
    for _ in range(CHUNKS):
        assert answered.wait(LATEST_S)
        yield bytes(1 << 16)


@pytest.mark.slow
async def test_refusal_during_an_upload_reaches_the_sender() -> None:
    answered = threading.Event()
    peers = ServiceClient(TokenIssuer("gateway", TOKEN))
    await peers.start()
    try:
        with refusing(answered) as url, pytest.raises(Conflict, match="'f' does not fit"):
            async with peers.stream(url, {}, archive(answered), audience="node/n"):
                pass
    finally:
        await peers.stop()
