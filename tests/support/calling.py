"""A running system with a broker, and an external API that the test controls."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from arl_store.migrate import ensure_api_key
from support.endpoint import External, external
from support.postgres import Databases
from support.system import System, running_system

__all__ = ["CALL", "SECRET", "STRANGER", "Site", "calling"]

STRANGER = "tk_" + "s" * 32
SECRET = "sk-0123456789abcdef"
CALL = {"task": "search", "kind": "call", "endpoint": "search"}


@dataclass(frozen=True)
class Site:
    system: System
    there: External
    api: httpx.AsyncClient

    async def call(self, request: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        body = {**CALL, "request": request or {"method": "GET"}, **fields}
        answer = await self.api.post("/v1/actions", params={"wait": 30}, json=body)
        assert answer.status_code == 200, answer.text
        action: dict[str, Any] = answer.json()
        return action

    def begin(self) -> None:
        """Clear the recorded requests and let the API answer normally."""
        self.there.asked.clear()
        self.there.answers()
        self.there.most = 0


@asynccontextmanager
async def calling(databases: Databases) -> AsyncIterator[Site]:
    """Run a system with endpoints of one external API and the unreachable endpoint `away`."""
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "strangers", STRANGER)
    async with external() as there:
        endpoints = {
            "search": {"url": f"{there.url}/v1/", "key": SECRET, "concurrency": 8, "secret_query": {"cx": "engine-7"}},
            "slow": {"url": there.url, "concurrency": 64, "rate_per_s": 20, "burst": 5, "idempotent": True},
            "many": {"url": there.url, "concurrency": 8},
            "away": {"url": "http://127.0.0.1:9", "max_attempts": 2},
        }
        overrides = {"api": {"TANGRAM_ENDPOINTS": json.dumps(endpoints)}}
        async with running_system(owner_url, overrides=overrides) as system, system.client() as api:
            await system.start("api")
            yield Site(system, there, api)
    await databases.drop(owner_url)
