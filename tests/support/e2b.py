"""A client of E2B's protocol that has only the token of one sandbox."""

import json
import struct
from base64 import b64decode, b64encode
from typing import Any

import httpx

__all__ = ["ENVD_PORT", "Sandbox", "create", "frame", "messages", "output"]

ENVD_PORT = "49983"


class Sandbox:
    """A client of one sandbox that has only its token."""

    def __init__(self, api: httpx.AsyncClient, created: dict[str, Any]) -> None:
        self.api, self.id, self.token = api, created["sandboxID"], created["envdAccessToken"]
        headers = {"e2b-sandbox-id": self.id, "e2b-sandbox-port": ENVD_PORT, "x-access-token": self.token}
        self.envd = httpx.AsyncClient(base_url=api.base_url, headers=headers, timeout=60)

    async def kill(self) -> None:
        await self.api.delete(f"/sandboxes/{self.id}")
        await self.envd.aclose()

    async def rpc(self, method: str, body: dict[str, Any]) -> httpx.Response:
        return await self.envd.post(f"/{method}", json=body)

    async def run(self, command: str, user: str | None = None, **options: Any) -> list[dict[str, Any]]:
        """Run a command as a user and return the messages of its stream."""
        body = {"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command], **options}, "stdin": False}
        headers = {"content-type": "application/connect+json"}
        if user is not None:
            headers["authorization"] = f"Basic {b64encode(f'{user}:'.encode()).decode()}"
        answer = await self.envd.post("/process.Process/Start", content=frame(body), headers=headers)
        assert answer.status_code == 200, answer.text
        return messages(answer.content)

    async def pids(self) -> list[int]:
        """Return the ids of the processes that run."""
        listed = (await self.rpc("process.Process/List", {})).json()
        return [each["pid"] for each in listed["processes"]]

    async def is_at_rest(self) -> bool:
        """Return True if no action of the sandbox is unsettled."""
        return {each["state"] for each in await self.actions()} == {"settled"}

    async def actions(self) -> list[dict[str, Any]]:
        """Return the actions that ran programs in the sandbox."""
        listed = (await self.api.get("/v1/actions", params={"task": "e2b", "limit": 100})).json()["items"]
        mine = [each for each in listed if each.get("environment", "").replace("-", "") == self.id]
        return [each for each in mine if each["kind"] == "exec"]


async def create(api: httpx.AsyncClient, **options: Any) -> Sandbox:
    answer = await api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 300, **options})
    assert answer.status_code == 201, answer.text
    return Sandbox(api, answer.json())


def frame(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return struct.pack(">BI", 0, len(content)) + content


def messages(data: bytes) -> list[dict[str, Any]]:
    found = []
    while data:
        _, length = struct.unpack_from(">BI", data)
        found.append(json.loads(data[5 : 5 + length]))
        data = data[5 + length :]
    return found


def output(found: list[dict[str, Any]], name: str = "stdout") -> str:
    events = [each["event"]["data"] for each in found if "data" in each.get("event", {})]
    return b"".join(b64decode(each[name]) for each in events if name in each).decode()
