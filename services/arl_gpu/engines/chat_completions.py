"""A client for an engine's chat completions. It does not retry; the action's `retries` do."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ECONNREFUSED
from typing import Any, NoReturn

import aiohttp

from arl_gpu.settings import EngineSettings
from arl_wire.validation import is_too_deep

__all__ = ["ChatCompletion", "ChatCompletionClient", "EngineRequestFailed", "ItemRefused"]

HEALTH_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 2.0
"""Seconds that an idle connection is kept; less than the 5 s after which uvicorn closes it."""
MAX_RESPONSE_BYTES = 4 << 20
"""Maximum size of a response, in bytes."""
ITEM_ERROR_STATUSES = frozenset({400, 413, 422})
"""Statuses by which engines refuse a request, for example because it is too long."""
ABORT_FINISH_REASON = "abort"
"""Finish reason of a completion that the engine aborted without a request of the client."""
MAX_SHOWN_BYTES = 500
CHUNK_BYTES = 64 << 10


class EngineRequestFailed(Exception):
    """A failed request for which the item is not the reason. `reason` is an error code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ItemRefused(Exception):
    """A request that the engine refused."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A chat completion with at least one choice, each with a message. `size`: bytes of the response."""

    completion: dict[str, Any]
    size: int

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Return the choices of the completion."""
        choices: list[dict[str, Any]] = self.completion["choices"]
        return choices


class ChatCompletionClient:
    """A client of one engine. Cancelling a call closes its connection, and the engine stops the request."""

    def __init__(self, settings: EngineSettings) -> None:
        self._url = settings.url.rstrip("/")
        self._key, self._configured_model = settings.key, settings.model
        self._model = self._configured_model
        # SGLang's /health generates a token, and SGLang must not release its memory while it generates.
        self._health = "/v1/models" if settings.family == "sglang" else "/health"
        self._timeout = aiohttp.ClientTimeout(
            total=settings.request_timeout_s, connect=None, sock_connect=CONNECT_TIMEOUT_S
        )
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, body: Mapping[str, Any]) -> ChatCompletion:
        """Send a chat completion. Raises `EngineRequestFailed` and `ItemRefused`."""
        asked = {**body, "model": await self._get_model_name(), "stream": False}
        content = await self._request("POST", "/v1/chat/completions", asked)
        answer = _parse_response(content)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not all(map(_has_message, choices)):
            raise EngineRequestFailed("engine_failed", "the response of the engine has no choices with messages")
        if any(choice.get("finish_reason") == ABORT_FINISH_REASON for choice in choices):
            raise EngineRequestFailed("engine_failed", "the engine aborted its answer")
        return ChatCompletion(answer, len(content))

    async def check_health(self) -> None:
        """Raise `EngineRequestFailed` if the engine is unhealthy: `engine_gone` if it refuses the connection."""
        await self._request("GET", self._health, None, timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _get_model_name(self) -> str:
        """Return the engine's name of its model."""
        if self._model is None:
            listed = _parse_response(await self._request("GET", "/v1/models", None)).get("data")
            first = listed[0] if isinstance(listed, list) and listed else None
            if not isinstance(first, dict) or not isinstance(first.get("id"), str):
                raise EngineRequestFailed("engine_failed", "the engine lists no model")
            self._model = first["id"]
        return self._model

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> bytes:
        try:
            async with self._get_session().request(
                method, self._url + path, json=body, timeout=timeout or self._timeout, allow_redirects=False
            ) as response:
                return _check_status(response.status, await _read_body(response))
        except TimeoutError:
            raise EngineRequestFailed("engine_timeout", f"the engine did not answer {path} in time") from None
        except aiohttp.ClientConnectorError as error:
            self._model = self._configured_model  # the restarted engine may serve another model
            reason = "engine_gone" if error.os_error.errno == ECONNREFUSED else "engine_unreachable"
            raise EngineRequestFailed(reason, f"the engine is not reachable: {error.os_error.strerror}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineRequestFailed(
                "engine_broke_off", f"the engine closed the connection during {path}: {type(error).__name__}"
            ) from None

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"authorization": f"Bearer {self._key}"} if self._key is not None else {}
            self._session = aiohttp.ClientSession(
                headers=headers, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
            )
        return self._session


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        found += chunk
        if len(found) > MAX_RESPONSE_BYTES:
            raise EngineRequestFailed(
                "engine_failed", f"the response of the engine has more than {MAX_RESPONSE_BYTES} bytes"
            )
    return bytes(found)


def _check_status(status: int, content: bytes) -> bytes:
    shown = content[:MAX_SHOWN_BYTES].decode(errors="replace")
    if status in ITEM_ERROR_STATUSES:
        raise ItemRefused(f"the engine answered with status {status}: {shown}")
    if status >= 300:
        raise EngineRequestFailed("engine_failed", f"the engine answered with status {status}: {shown}")
    return content


def _parse_response(content: bytes) -> dict[str, Any]:
    """Parse a response strictly. Postgres rejects NaN and infinity, and with them all rows of the same statement."""
    try:
        answer = json.loads(content, parse_constant=_reject_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise EngineRequestFailed("engine_failed", f"the response of the engine is not valid JSON: {error}") from None
    if not isinstance(answer, dict):
        raise EngineRequestFailed("engine_failed", "the response of the engine is not a JSON object")
    if is_too_deep(answer):
        raise EngineRequestFailed("engine_failed", "the response of the engine has too many nested levels")
    return answer


def _reject_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not a finite number")


def _parse_finite(literal: str) -> float:
    number = float(literal)
    return number if math.isfinite(number) else _reject_constant(literal)


def _has_message(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    return isinstance(message, dict) and isinstance(message.get("content"), str | None)
