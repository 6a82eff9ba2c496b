"""Which service a request of a trainer's protocol means, by what it names and what there is."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from fastapi import FastAPI, Request

from arl_gateway.compat.target import resolve_target
from arl_gateway.deps import GatewayDeps
from arl_gateway.reward_services.service_directory import ServiceEntry
from arl_kit.app import provide_deps
from arl_wire.errors import NotFound

UNKNOWN = "/models/skywork"
CLASSIFIERS = ("classifier", "sequence-classifier")


class Known:
    """In place of what is looked up."""

    def __init__(self, services: Sequence[ServiceEntry]) -> None:
        self._services = services

    async def list_services(self, *, required: str | None = None) -> Sequence[ServiceEntry]:
        return self._services


def along(name: str, kind: str = "classifier") -> ServiceEntry:
    return ServiceEntry(name=name, kind=kind, is_anywhere=True)


def registered(name: str, kind: str = "sequence-classifier") -> ServiceEntry:
    return ServiceEntry(name=name, kind=kind, is_anywhere=True, is_registered=True)


FRESH = (along("minilm", "similarity"), along("quality"), along("exact", "exact"))


async def named(model: str | None, *services: ServiceEntry, query: bytes = b"") -> str:
    app = FastAPI()
    others: dict[str, Any] = dict.fromkeys(field.name for field in fields(GatewayDeps))
    provide_deps(app, GatewayDeps(**others | {"service_directory": Known(services)}))
    scope = {"type": "http", "app": app, "headers": [], "query_string": query, "path_params": {}}
    return (await resolve_target(Request(scope), CLASSIFIERS, model=model)).service.name


@pytest.mark.parametrize("model", [None, "", UNKNOWN])
async def test_the_only_one_that_was_registered_serves_whatever_names_none(model: str | None) -> None:
    others = (registered("ranker", "reranker"), registered("twin", "similarity"))
    assert await named(model, *FRESH, *others, registered("rm")) == "rm"


@pytest.mark.parametrize("model", [None, ""])
async def test_what_comes_along_serves_who_names_nothing(model: str | None) -> None:
    assert await named(model, *FRESH) == "quality"
    assert await named(model, registered("twin", "similarity"), *FRESH) == "quality"
    assert await named(model, along("own", "python"), along("exact", "exact")) == "own"


@pytest.mark.parametrize("services", [FRESH, (*FRESH, registered("twin", "similarity")), FRESH[:2], ()])
async def test_a_model_that_is_unknown_is_served_by_nothing_else(services: Sequence[ServiceEntry]) -> None:
    with pytest.raises(
        NotFound, match=f"reward service '{UNKNOWN}' does not exist, and no suitable service is registered"
    ):
        await named(UNKNOWN, *services)


async def test_of_several_that_were_registered_none_is_chosen() -> None:
    with pytest.raises(NotFound, match="several registered services are suitable"):
        await named(UNKNOWN, registered("a"), registered("b"))
    with pytest.raises(NotFound, match="Available: a, b, quality"):
        await named(None, registered("a"), registered("b"), along("quality"))


async def test_a_name_of_a_service_is_that_one_however_it_came() -> None:
    assert await named("quality", *FRESH, registered("rm")) == "quality"
    assert await named(UNKNOWN, *FRESH, registered("rm"), query=b"service=quality") == "quality"
