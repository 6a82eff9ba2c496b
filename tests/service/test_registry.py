"""The registry of reward services, as admission writes it."""

from typing import cast

import pytest

from arl_admission import registry_rows
from arl_gateway.auth import Caller
from arl_gateway.keys import ROOT_PROJECT
from arl_gateway.rewards import Rewards
from arl_kit.peers import Peers
from arl_wire.errors import Conflict
from arl_wire.internal import ChangeServiceWish, RemoveServiceAnswer
from arl_wire.services import RegisterService, ServiceVerb
from support.rows import Rows, store_of

BROUGHT = '[{"name": "minilm", "kind": "similarity"}]'
MINE = RegisterService.model_validate({"name": "minilm", "kind": "relevance", "source": "model"})


async def test_a_wish_of_what_came_along_keeps_its_name_from_nobody_later(rows: Rows, shared: str) -> None:
    node = await rows.node()
    await rows.execute("update nodes set services = $2 where id = $1", node, BROUGHT)
    async with store_of(shared, "admission") as store:
        async with store.write() as tx:
            assert await registry_rows.change_service(tx, ChangeServiceWish(name="minilm", verb=ServiceVerb.PIN)) == 1
            assert await registry_rows.register_service(tx, MINE) == 0, "the node offers it"
        await rows.execute("update nodes set services = '[]' where id = $1", node)
        async with store.write() as tx:
            assert await registry_rows.register_service(tx, MINE) == 1
            assert await registry_rows.register_service(tx, MINE) == 0, "it is registered"
        pinned = await rows.value("select pinned from services where name = 'minilm' and source = 'model'")
        assert pinned is False
        async with store.write() as tx:
            assert await registry_rows.remove_service(tx, "minilm") == (1, 0)


class NothingRemoved:
    async def call(self, *_: object) -> bytes:
        return RemoveServiceAnswer(removed=False, unsettled=0).model_dump_json().encode()


async def test_a_verifier_is_not_removed_and_nobody_is_told_to_drain_it(shared: str) -> None:
    caller = Caller(key_id=1, project_id=1, project=ROOT_PROJECT, scopes=frozenset({"*"}))
    async with store_of(shared, "gateway") as store:
        rewards = Rewards(store, cast(Peers, NothingRemoved()), admission_url="http://a")
        with pytest.raises(Conflict) as refused:
            await rewards.remove("exact", caller)
    assert "drain" not in refused.value.detail
