"""A small engine with the HTTP behavior of vLLM or SGLang: it sleeps, wakes, answers and fails on request.

`python -m support.engine FAMILY FD` serves on a listening socket. An answer is made of its prompt alone: what follows
`say:` in the last message, of alternatives between `|` one for each sample in turn; else `verdict: good` or `bad`.
"""

import asyncio
import os
import random
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from arl_kit.child_process import spawn

__all__ = ["KEY", "RunningEngine", "running_engine", "verdict_of"]

KEY = "engine-key-0123456789"
MODEL = "tiny"
STDERR = 2


def verdict_of(prompt: str) -> str:
    return "good" if zlib.crc32(prompt.encode()) % 2 else "bad"


@dataclass
class Told:
    """Faults of the engine, each set by a request to `/control`."""

    wakes_that_fail: int = 0
    slow_wake_s: float = 0.0
    sleep_frees_nothing: bool = False
    refuses_sleep: bool = False
    slow_sleep_s: float = 0.0
    hang: bool = False
    slow_abort_s: float = 0.0
    """Seconds for which the engine keeps working on a request that its client aborted."""
    answer: str | None = None
    """`garbled`, `no_choices`, a status code, or the literal JSON response."""
    chat_s: float = 0.0
    seed: int = field(default_factory=lambda: random.randrange(1 << 16, 1 << 30))
    """Random seed. SGLang draws it at its start unless it is given."""
    hides_its_seed: bool = False


@dataclass
class Serving:
    family: str
    told: Told = field(default_factory=Told)
    asleep: bool = False
    seen: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("chats", "aborted", "sleeps", "wakes", "in_flight", "most"), 0)
    )

    async def control(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            setattr(self.told, name, value)
        return web.json_response({})

    async def state(self, _: web.Request) -> web.Response:
        return web.json_response({"asleep": self.asleep, **self.seen})

    async def health(self, _: web.Request) -> web.Response:
        """Answer a health check. SGLang generates a token for it, in older versions also while asleep."""
        if self.family == "sglang" and self.asleep:
            os._exit(6)
        return web.Response()

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.asleep})

    async def sleep(self, request: web.Request) -> web.Response:
        if self.family == "sglang" and (self.asleep or self.seen["in_flight"]):
            os._exit(3)  # as torch_memory_saver does for what is paused already, and as its assertion does
        while self.seen["in_flight"] and request.query.get("mode") == "wait":
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.told.slow_sleep_s)
        if self.told.refuses_sleep:
            return web.json_response({"error": "as it was told"}, status=500)
        self.seen["sleeps"] += 1
        self.asleep = not self.told.sleep_frees_nothing
        return web.json_response({})

    async def server_info(self, _: web.Request) -> web.Response:
        seed = {} if self.told.hides_its_seed else {"random_seed": self.told.seed}
        return web.json_response({**seed, "internal_states": []})

    async def flush(self, _: web.Request) -> web.Response:
        return web.Response(status=400 if self.seen["in_flight"] else 200)

    async def wake(self, _: web.Request) -> web.Response:
        if self.family == "sglang" and not self.asleep:
            os._exit(4)  # KeyError: a tag that was not released
        await asyncio.sleep(self.told.slow_wake_s)
        if self.told.wakes_that_fail:
            self.told.wakes_that_fail -= 1
            return web.json_response({"error": "CUDA out of memory"}, status=500)
        self.seen["wakes"] += 1
        self.asleep = False
        return web.json_response({})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        if self.asleep:
            os._exit(5)  # as vllm-project/vllm#15483
        body = await request.json()
        self.seen["chats"] += 1
        self.seen["in_flight"] += 1
        self.seen["most"] = max(self.seen["most"], self.seen["in_flight"])
        try:
            while self.told.hang:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.told.chat_s)
            return self._answer(body)
        except asyncio.CancelledError:
            self.seen["aborted"] += 1
            await asyncio.sleep(self.told.slow_abort_s)
            raise
        finally:
            self.seen["in_flight"] -= 1

    def _answer(self, body: dict[str, Any]) -> web.Response:
        match self.told.answer:
            case "garbled":
                return web.Response(text='{"choices": [{"mess', content_type="application/json")
            case "no_choices":
                return web.json_response({"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL})
            case str() as said if said.startswith("{"):
                return web.Response(text=said, content_type="application/json")
            case str() as status:
                return web.json_response({"error": {"message": "as it was told", "code": status}}, status=int(status))
        if body["model"] != MODEL:
            return web.json_response({"error": {"message": f"no {body['model']}"}}, status=404)
        prompt = body["messages"][-1]["content"]
        if len(prompt) > 10_000:
            return web.json_response({"error": {"message": "maximum context length is 2500 tokens"}}, status=400)
        said = prompt.partition("say:")[2].split("|") if "say:" in prompt else [f"verdict: {verdict_of(prompt)}"]
        choices = [
            {
                "index": at,
                "message": {"role": "assistant", "content": said[at % len(said)]},
                "finish_reason": "stop",
                "logprobs": {"content": []} if body.get("logprobs") else None,
            }
            for at in range(body.get("n", 1))
        ]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 2, "total_tokens": len(prompt) + 2}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
        return web.json_response(answer | {"choices": choices, "usage": usage, "asked": body})


async def serve(family: str, listening: socket.socket) -> None:
    serving, app = Serving(family), web.Application(client_max_size=1 << 24)
    app.router.add_post("/control", serving.control)
    app.router.add_get("/state", serving.state)
    app.router.add_get("/health", serving.health)
    app.router.add_get("/v1/models", serving.models)
    app.router.add_post("/v1/chat/completions", serving.chat)
    if family == "vllm":
        app.router.add_get("/is_sleeping", serving.is_sleeping)
        app.router.add_post("/sleep", serving.sleep)
        app.router.add_post("/wake_up", serving.wake)
    else:
        app.router.add_get("/get_server_info", serving.server_info)
        app.router.add_post("/flush_cache", serving.flush)
        app.router.add_post("/release_memory_occupation", serving.sleep)
        app.router.add_post("/resume_memory_occupation", serving.wake)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    await asyncio.Event().wait()


@dataclass
class RunningEngine:
    """An engine in its own process, at an address that stays the same after a restart."""

    family: str
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, mib: int, **more: Any) -> dict[str, Any]:
        """Return the engine's settings as in `TANGRAM_ENGINES`."""
        return {"url": self.url, "family": self.family, "device_memory_mib": mib, "api_key": KEY, **more}

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    async def start(self) -> None:
        with socket.create_server(("127.0.0.1", self.port)) as listening:
            self.port = listening.getsockname()[1]
            argv = [sys.executable, "-m", "support.engine", self.family, str(listening.fileno())]
            env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
            self.process = spawn(argv, env=env, output=STDERR, pass_fds=(listening.fileno(),))
        await self.state()

    async def tell(self, **faults: Any) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as client:
            (await client.post("/control", json=faults)).raise_for_status()

    async def state(self) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as client:
            found: dict[str, Any] = (await client.get("/state")).json()
            return found

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@asynccontextmanager
async def running_engine(family: str = "vllm") -> AsyncIterator[RunningEngine]:
    engine = RunningEngine(family)
    await engine.start()
    try:
        yield engine
    finally:
        engine.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2]))))
