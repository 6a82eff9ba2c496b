"""Reward services, as the rows of the nodes and of the registry say. Admission is the writer of the registry."""

import json
from collections import defaultdict
from collections.abc import Sequence

from arl_gateway import repository
from arl_gateway.auth import Caller
from arl_gateway.keys import ROOT_PROJECT
from arl_gateway.reward_rows import is_there_a_cpu_node, services_of_nodes, wishes_of_services
from arl_kit.peers import Peers
from arl_store.tx import Row, Store
from arl_wire.errors import Conflict, FieldError, Forbidden, NotFound
from arl_wire.internal import (
    ChangeServiceWish,
    RegisterServiceWish,
    RemoveServiceAnswer,
    RemoveServiceWish,
    WishAnswer,
)
from arl_wire.kinds import VERIFIERS
from arl_wire.services import NOT_HERE, RegisterService, RewardService, RewardServiceList, ServiceOnNode, ServiceVerb

__all__ = ["Rewards"]


class Rewards:
    def __init__(self, store: Store, peers: Peers, *, admission_url: str) -> None:
        self._store, self._peers, self._admission_url = store, peers, admission_url

    async def list(self, caller: Caller) -> RewardServiceList:
        """As its project may see them."""
        return RewardServiceList(items=[_seen_by(caller, each) for each in await self.all()])

    async def all(self) -> Sequence[RewardService]:
        """With all that is known of them, in order of their names."""
        async with self._store.read() as tx:
            found = _services(await services_of_nodes(tx), await wishes_of_services(tx))
            verifiers = _verifiers(available=await is_there_a_cpu_node(tx))
        return sorted([*found, *verifiers], key=lambda each: each.name)

    async def get(self, name: str, caller: Caller) -> RewardService:
        """As its project may see it. Raises `NotFound`."""
        async with self._store.read() as tx:
            found = _services(await services_of_nodes(tx, name=name), await wishes_of_services(tx, name=name))
            if name in VERIFIERS:
                found = [each for each in _verifiers(available=await is_there_a_cpu_node(tx)) if each.name == name]
        if not found:
            raise _no_service(name)
        return _seen_by(caller, found[0])

    async def register(self, wanted: RegisterService, caller: Caller) -> RewardService:
        """Raises `Conflict` where the name is taken."""
        _must_administer(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/register-service", RegisterServiceWish(service=wanted)
        )
        if WishAnswer.model_validate_json(content).count == 0:
            message = f"there is a reward service {wanted.name!r} already; remove it first, or take another name"
            raise Conflict(message, errors=[FieldError(field="name", message=message)])
        await self._note(caller, "service.register", wanted.name, wanted.model_dump_json(exclude_none=True))
        return await self.get(wanted.name, caller)

    async def change(self, name: str, verb: ServiceVerb, caller: Caller) -> RewardService:
        """Raises `NotFound`."""
        _must_administer(caller)
        content = await self._peers.call(
            f"{self._admission_url}/internal/change-service", ChangeServiceWish(name=name, verb=verb)
        )
        if WishAnswer.model_validate_json(content).count == 0:
            raise _no_service(name)
        await self._note(caller, f"service.{verb.value}", name, "{}")
        return await self.get(name, caller)

    async def remove(self, name: str, caller: Caller) -> None:
        """Raises `Conflict` while actions wait for it or are scored by it, and `NotFound`."""
        _must_administer(caller)
        content = await self._peers.call(f"{self._admission_url}/internal/remove-service", RemoveServiceWish(name=name))
        answer = RemoveServiceAnswer.model_validate_json(content)
        if answer.unsettled:
            raise Conflict(f"{answer.unsettled} actions of {name!r} have not settled; cancel them or wait for them")
        if not answer.removed:
            there = (await self.get(name, caller)).name
            if there in VERIFIERS:
                raise Conflict(f"{there!r} is a program of the system, and is there wherever sandboxes are")
            raise Conflict(f"{there!r} comes along with its node; `drain` keeps it from taking anything new")
        await self._note(caller, "service.remove", name, "{}")

    async def _note(self, caller: Caller, verb: str, name: str, detail: str) -> None:
        async with self._store.write() as tx:
            await repository.insert_audit(
                tx,
                project_id=caller.project_id,
                api_key_id=caller.key_id,
                verb=verb,
                target=f"service:{name}",
                detail=detail,
            )


def _must_administer(caller: Caller) -> None:
    """Services are scored by all projects, so only keys of the first one have a say in them."""
    if caller.project != ROOT_PROJECT:
        raise Forbidden(f"reward services are changed with a key of the project `{ROOT_PROJECT}`")


def _seen_by(caller: Caller, service: RewardService) -> RewardService:
    """What a service is made of, and where, is for those who may change it; the others see how it is called."""
    if caller.project == ROOT_PROJECT and caller.may("admin:read"):
        return service
    nodes = [each.model_copy(update={"health": each.health.partition(":")[0]}) for each in service.nodes]
    options = {name: value for name, value in service.options.items() if name != "judge"}
    return service.model_copy(update={"model": None, "options": options, "nodes": nodes})


def _no_service(name: str) -> NotFound:
    message = f"there is no reward service {name!r}"
    return NotFound(message, errors=[FieldError(field="name", message=message)])


def _verifiers(*, available: bool) -> list[RewardService]:
    """They run on any CPU node, and on no device."""
    return [
        RewardService(name=name, kind=name, model="a program in a sandbox", available=available, nodes=[])
        for name in VERIFIERS
    ]


def _services(said: Sequence[Row], wishes: Sequence[Row]) -> list[RewardService]:
    """In order of their names."""
    wished = {row.name: row for row in wishes}
    registered = {row.name: row.registered_at for row in wishes if row.kind is not None}
    by_name: defaultdict[str, list[tuple[dict[str, object], Row]]] = defaultdict(list)
    for row in said:
        entry = json.loads(row.said)
        # A node may not have heard yet that it was removed, or removed and registered anew.
        if not entry.get("registered", False) or entry.get("registered_at") == registered.get(entry["name"], -1.0):
            by_name[entry["name"]].append((entry, row))
    names = sorted(by_name.keys() | registered.keys())
    return [_service(name, by_name.get(name, []), wished.get(name)) for name in names]


def _service(name: str, nodes: Sequence[tuple[dict[str, object], Row]], wish: Row | None) -> RewardService:
    on_nodes = [
        ServiceOnNode.model_validate({**said, "node": row.node, "available": row.available, "in_flight": row.in_flight})
        for said, row in nodes
    ]
    described = dict(next((said for said, _ in nodes if said.get("slots")), nodes[0][0])) if nodes else {}
    if wish is not None:
        described |= {"pinned": wish.pinned, "drained": wish.drained}
        if wish.kind is not None:
            described |= {"kind": wish.kind, "model": wish.source, "options": json.loads(wish.options)}
            described["registered"] = True
    # Why a node lacks it is of use where all of them do.
    on_nodes = [each for each in on_nodes if not each.health.startswith(NOT_HERE)] or on_nodes
    available = any(each.available for each in on_nodes)
    return RewardService.model_validate({**described, "name": name, "available": available, "nodes": on_nodes})
