"""Test that time in which Postgres is frozen does not count as node silence."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from support.postgres import Databases, fast_postgres
from support.system import running_system

SHORT = {"TANGRAM_NODE_TTL_S": "1", "TANGRAM_BEAT_S": "0.2", "TANGRAM_POLL_IDLE_S": "1"}
FROZEN_S = 3.0


def tree_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in tree_of(int(child)))]


@pytest.mark.slow
async def test_frozen_postgres_loses_no_running_action() -> None:
    async with fast_postgres() as server:
        url = await Databases(server).clone()
        async with running_system(url, overrides={"scheduler": SHORT, "cpu": SHORT}) as system:
            async with system.client() as client:
                body = {"task": "t", "argv": ["sleep", "5"]}
                id = (await client.post("/v1/actions", json=body)).json()["id"]
                async with asyncio.timeout(10):
                    while (await client.get(f"/v1/actions/{id}")).json()["state"] != "running":
                        await asyncio.sleep(0.02)
                postmaster = int((server.paths.data / "postmaster.pid").read_text().splitlines()[0])
                frozen = tree_of(postmaster)
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(FROZEN_S)
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
                action = (await client.get(f"/v1/actions/{id}?wait=30")).json()
            assert (action["outcome"], action["grant_no"]) == ("ok", 1)
