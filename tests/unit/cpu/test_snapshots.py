"""Writing of snapshots to the disk."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from arl_cpu.node.snapshots import NodeSnapshots
from arl_wire.errors import TooLarge
from support.executor import FakeExecutor


class GrowingWork:
    """A file operation that announces a small size and sends more."""

    async def read_response(self) -> Mapping[str, Any]:
        return {"members": 1, "bytes": 1, "names": 1, "left_out": 0}

    async def output(self) -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def send(self, data: bytes) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


async def test_snapshot_larger_than_announced_is_not_stored(tmp_path: Path) -> None:
    store: Any = None
    snapshots = NodeSnapshots(tmp_path, node_name="../n", max_mib=1, store=store, executor=FakeExecutor())
    (tmp_path / "node-..%2Fn").mkdir()
    with pytest.raises(TooLarge, match="reserved"):
        await snapshots.take(uuid4(), GrowingWork())
    assert list((tmp_path / "node-..%2Fn").iterdir()) == []
