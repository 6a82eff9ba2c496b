"""Test how admission registers and removes reward services."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from arl_admission import reward_service_queries
from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_gateway.admin.keys import ROOT_PROJECT
from arl_gateway.http.auth import Caller
from arl_gateway.reward_services.service import RewardServiceAdmin
from arl_gateway.reward_services.service_directory import ServiceDirectory
from arl_gpu.node import repository as polls
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore, ReadTx
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import Conflict
from arl_wire.internal.admission import AdmitItem
from arl_wire.internal.reward_services import (
    InternalRegisterServiceRequest,
    RemoveServiceRequest,
    RemoveServiceResponse,
    ServiceOperationRequest,
)
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.reward_services.service import RegisterRewardServiceRequest, ServiceOperation
from arl_wire.scores import ScoreItem
from support.builders import EPOCH
from support.peers import RecordingPeers
from support.rows import Rows, store_of

SETTINGS = AdmissionSettings(port=1, database_url="postgresql://", service_token="t" * 16, scheduler_url="http://s")
BROUGHT = '[{"name": "minilm", "kind": "similarity"}]'
MINE = RegisterRewardServiceRequest.model_validate({"name": "minilm", "kind": "relevance", "source": "model"})
SAID = {
    "name": "minilm",
    "kind": "relevance",
    "registered": True,
    "model": "model",
    "max_tokens": 1,
    "device": "cpu",
    "slots": 1,
    "state": "resident",
    "batches": 1,
    "scores": 1,
    "health": "ok",
}
ADMINISTRATOR = Caller(key_id=1, project_id=1, project=ROOT_PROJECT, scopes=frozenset({"admin:*"}))


async def test_pinned_builtin_service_does_not_block_registering_its_name_later(rows: Rows, shared: str) -> None:
    node = await rows.node()
    await rows.execute("update nodes set services = $2 where id = $1", node, BROUGHT)
    async with store_of(shared, "admission") as store:
        async with store.write() as tx:
            assert (
                await reward_service_queries.change_service(
                    tx, ServiceOperationRequest(name="minilm", verb=ServiceOperation.PIN)
                )
                == 1
            )
            assert await reward_service_queries.register_service(tx, MINE) == 0, "the node offers it"
        await rows.execute("update nodes set services = '[]' where id = $1", node)
        async with store.write() as tx:
            assert await reward_service_queries.register_service(tx, MINE) == 1
            assert await reward_service_queries.register_service(tx, MINE) == 0, "it is registered"
        pinned = await rows.value("select pinned from services where name = 'minilm' and source = 'model'")
        assert pinned is False
        async with store.write() as tx:
            assert await reward_service_queries.remove_service(tx, "minilm") == (1, 0)


async def test_re_registered_service_is_unavailable_until_its_node_polls(rows: Rows, shared: str) -> None:
    node = await rows.node("anew")
    async with (
        store_of(shared, "admission") as store,
        store_of(shared, "gpu") as manager,
        store_of(shared, "gateway") as gateway,
    ):
        rewards = RewardServiceAdmin(gateway, cast(ServiceClient, None), admission_url="http://a")

        async def registered() -> None:
            async with store.write() as tx:
                await reward_service_queries.register_service(tx, MINE)

        async def node_polls() -> None:
            async with manager.read() as tx:
                _, [wish] = await polls.poll(tx, node_id=node, epoch=EPOCH)
            said = SAID | {"registered_at": wish.registered_at}
            await rows.execute("update nodes set services = $2 where id = $1", node, json.dumps([said]))

        async def is_there() -> bool:
            found = bool((await rewards.get("minilm", ADMINISTRATOR)).available)
            [asked] = [each for each in await ServiceDirectory(gateway).list_services() if each.name == "minilm"]
            assert (asked.kind, asked.options, asked.is_anywhere) == ("relevance", {}, found)
            assert asked.is_registered
            return found

        await registered()
        await node_polls()
        assert await is_there()
        async with store.write() as tx:
            await reward_service_queries.remove_service(tx, "minilm")
        await registered()
        assert not await is_there()
        await node_polls()
        assert await is_there()
        async with store.write() as tx:
            await reward_service_queries.remove_service(tx, "minilm")
        assert "minilm" not in {
            each.name for each in [*await rewards.list_all(), *await ServiceDirectory(gateway).list_services()]
        }


async def test_registration_overrides_a_builtin_service_with_the_same_name(rows: Rows, shared: str) -> None:
    for name, brought in (("one", BROUGHT), ("other", BROUGHT.replace("similarity", "classifier"))):
        await rows.execute("update nodes set services = $2 where id = $1", await rows.node(name), brought)
    async with store_of(shared, "gateway") as store:
        before = await ServiceDirectory(store).list_services()
        sql = "insert into services (name, kind, source, options) values ('minilm', 'reranker', 's', $1)"
        await rows.execute(sql, '{"activation": false}')
        after = await ServiceDirectory(store).list_services()
    found = [(each.kind, each.is_registered) for each in before if each.name == "minilm"]
    assert found == [("similarity", False)]
    assert [dict(each.options) for each in after if each.is_registered] == [{"activation": False}]
    assert {each.name for each in after} == {"minilm", *VERIFIERS}


async def test_node_without_the_service_reports_its_reason_and_is_unavailable(rows: Rows, shared: str) -> None:
    reason = "bad_registration: tensor_parallel: it needs 4 devices"
    async with store_of(shared, "gateway") as store:
        rewards = RewardServiceAdmin(store, cast(ServiceClient, None), admission_url="http://a")
        await rows.execute("insert into services (name, kind, source) values ('split', 'logprobs', 's')")
        at = await rows.value("select extract(epoch from registered_at)::float8 from services where name = 'split'")
        said = SAID | {"name": "split", "kind": "logprobs", "registered_at": at}
        refused = said | {"slots": 0, "state": "cold", "max_tokens": None, "health": reason}
        small = await rows.node("a-small-one")
        await rows.execute("update nodes set services = $2 where id = $1", small, json.dumps([refused]))
        found = await rewards.get("split", ADMINISTRATOR)
        assert (found.available, [each.health for each in found.nodes]) == (False, [reason])
        [asked] = [each for each in await ServiceDirectory(store).list_services() if each.name == "split"]
        assert not asked.is_anywhere
        large = await rows.node("one-with-four")
        await rows.execute("update nodes set services = $2 where id = $1", large, json.dumps([said]))
        found = await rewards.get("split", ADMINISTRATOR)
        assert (found.available, found.max_tokens, [each.available for each in found.nodes]) == (True, 1, [False, True])
        lacks = refused | {"health": "not_here: s/config.json does not exist"}
        await rows.execute("update nodes set services = $2 where id = $1", small, json.dumps([lacks]))
        assert [each.node for each in (await rewards.get("split", ADMINISTRATOR)).nodes] == ["one-with-four"]
        await rows.execute("update nodes set services = '[]' where id = $1", large)
        assert [each.health for each in (await rewards.get("split", ADMINISTRATOR)).nodes] == [lacks["health"]]


class NothingRemoved:
    async def call(self, *_: object, **__: object) -> bytes:
        return RemoveServiceResponse(removed=False, unsettled=0).model_dump_json().encode()


def score_of(service: str, rows: Rows) -> AdmitItem:
    action = SubmitActionRequest(kind="score", task="t", service=service, items=[ScoreItem(text="a", reference="b")])
    return AdmitItem(project_id=rows.project, action=action)


class SlowReads:
    """A store that holds back the results of its reads until a test releases them."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.read_by, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTx]:
        async with self._store.read() as tx:
            yield tx
        self.read_by.set()
        await self.may_end.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_stale_admission_cache_does_not_revive_a_removed_service(rows: Rows, shared: str) -> None:
    node = await rows.node("slow-reads")
    await rows.execute("update nodes set kind = 'gpu', services = '[]' where id = $1", node)
    async with store_of(shared, "admission") as store:
        reads = SlowReads(store)
        admission = AdmissionService(cast(PostgresStore, reads), cast(ServiceClient, RecordingPeers()), SETTINGS)
        service = RegisterRewardServiceRequest.model_validate({"name": "mine", "kind": "relevance", "source": "model"})
        await admission.reward_services.register(InternalRegisterServiceRequest(service=service))
        item = score_of("mine", rows)
        reads.may_end.clear()
        early = asyncio.create_task(admission.admit([item]))
        await reads.read_by.wait()
        assert (await admission.reward_services.remove(RemoveServiceRequest(name="mine"))).removed
        reads.may_end.set()
        late = admission.admit([item])
        problems = [answer.items[0].problem for answer in await asyncio.gather(early, late)]
        assert [problem.code for problem in problems if problem is not None][-1:] == ["reward_service_not_found"]
        assert await rows.value("select count(*) from action_specs where payload ->> 'service' = 'mine'") == 0


async def test_service_removed_by_another_admission_accepts_no_action(rows: Rows, shared: str) -> None:
    node = await rows.node("of-two-admissions")
    await rows.execute("update nodes set kind = 'gpu', services = '[]' where id = $1", node)
    async with store_of(shared, "admission") as store:
        here, there = (AdmissionService(store, cast(ServiceClient, RecordingPeers()), SETTINGS) for _ in range(2))
        for name in ("kept", "gone"):
            service = RegisterRewardServiceRequest.model_validate(
                {"name": name, "kind": "relevance", "source": "model"}
            )
            await here.reward_services.register(InternalRegisterServiceRequest(service=service))
        kept, item = (score_of(name, rows) for name in ("kept", "gone"))
        assert (await here.admit([kept])).items[0].problem is None
        assert (await there.reward_services.remove(RemoveServiceRequest(name="kept"))).unsettled == 1
        assert (await there.reward_services.remove(RemoveServiceRequest(name="gone"))).removed
        keyed = item.model_copy(update={"key": "again", "body_hash": "00"})
        problems = [answer.problem for answer in (await here.admit([item, keyed])).items]
        assert [problem.code for problem in problems if problem is not None] == [
            "reward_service_not_found",
            "unavailable",
        ]
        assert await rows.value("select count(*) from submissions where key = 'again'") == 0
        await here.reward_services.register(InternalRegisterServiceRequest(service=service))
        removing, admitting = there.reward_services.remove(RemoveServiceRequest(name="gone")), here.admit([item])
        removed, answered = await asyncio.gather(removing, admitting)
        assert removed.removed is (answered.items[0].problem is not None)


async def test_removing_a_verifier_is_refused_without_advice_to_drain_it(shared: str) -> None:
    async with store_of(shared, "gateway") as store:
        rewards = RewardServiceAdmin(store, cast(ServiceClient, NothingRemoved()), admission_url="http://a")
        with pytest.raises(Conflict) as refused:
            await rewards.remove("exact", ADMINISTRATOR)
    assert "drain" not in refused.value.detail
