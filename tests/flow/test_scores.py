"""Scores through the whole line: durable, batched across requests, right, and never a 0 that nobody computed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "minilm_reference.json").read_text())
TEXTS: list[str] = REFERENCE["texts"]
COSINES = np.array(REFERENCE["embeddings"]) @ np.array(REFERENCE["embeddings"]).T
TOLERANCE = 1e-4
CLIENTS = 32


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, scores=True) as system:
        yield system
    await databases.drop(owner_url)


def scored(*pairs: tuple[str, str], **changed: Any) -> dict[str, Any]:
    items = [{"text": text, "reference": reference} for text, reference in pairs]
    return {"task": "deep-search", "kind": "score", "service": "minilm", "items": items} | changed


async def settled(api: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post("/v1/actions", json=body, params={"wait": 50})
    assert answer.status_code == 200, answer.text
    action: dict[str, Any] = answer.json()
    return action


async def scores_of(api: httpx.AsyncClient, count: int) -> None:
    """One item a call from many clients at once; every answer is right, and every action has a row and one result."""
    at = [(number % len(TEXTS), (number // len(TEXTS) + number) % len(TEXTS)) for number in range(count)]
    work = iter(at)

    async def client() -> list[tuple[int, int, float]]:
        found = []
        for one, other in work:
            action = await settled(api, scored((TEXTS[one], TEXTS[other]), task="many"))
            assert action["outcome"] == "ok", action
            [entry] = action["result"]["scores"]
            found.append((one, other, entry["score"]))
        return found

    found = [each for part in await asyncio.gather(*(client() for _ in range(CLIENTS))) for each in part]
    assert len(found) == count
    assert max(abs(score - COSINES[one, other]) for one, other, score in found) < TOLERANCE


async def test_items_of_many_clients_are_each_answered_once_and_right(api: httpx.AsyncClient, system: System) -> None:
    await scores_of(api, 150)
    metrics = (await api.get(f"{system.url_of('gpu')}/metrics")).text
    said = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(said["tangram_gpu_items_total"]) >= 150
    assert float(said["tangram_gpu_batches_total"]) < 150


async def test_many_items_in_one_action_come_back_in_their_order(api: httpx.AsyncClient) -> None:
    pairs = [(text, other) for text in TEXTS[:6] for other in TEXTS]
    action = await settled(api, scored(*pairs))
    found = [entry["score"] for entry in action["result"]["scores"]]
    assert np.abs(np.array(found) - COSINES[:6].flatten()).max() < TOLERANCE
    assert action["amounts"] == {"slots:minilm": 1}
    assert action["result"]["cpu_s"] > 0
