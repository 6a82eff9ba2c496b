"""Selection of the reward service that a trainer's request addresses."""

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
    """A fake service directory with fixed services."""

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
async def test_only_registered_service_serves_requests_without_known_model(model: str | None) -> None:
    others = (registered("ranker", "reranker"), registered("twin", "similarity"))
    assert await named(model, *FRESH, *others, registered("rm")) == "rm"


@pytest.mark.parametrize("model", [None, ""])
async def test_built_in_service_serves_requests_that_name_no_model(model: str | None) -> None:
    assert await named(model, *FRESH) == "quality"
    assert await named(model, registered("twin", "similarity"), *FRESH) == "quality"
    assert await named(model, along("own", "python"), along("exact", "exact")) == "own"


@pytest.mark.parametrize("services", [FRESH, (*FRESH, registered("twin", "similarity")), FRESH[:2], ()])
async def test_unknown_model_without_registered_service_is_not_found(services: Sequence[ServiceEntry]) -> None:
    with pytest.raises(
        NotFound, match=f"reward service '{UNKNOWN}' does not exist, and no suitable service is registered"
    ):
        await named(UNKNOWN, *services)


async def test_ambiguous_registered_services_are_not_chosen() -> None:
    with pytest.raises(NotFound, match="several registered services are suitable"):
        await named(UNKNOWN, registered("a"), registered("b"))
    with pytest.raises(NotFound, match="Available: a, b, quality"):
        await named(None, registered("a"), registered("b"), along("quality"))


async def test_service_name_in_model_or_query_selects_that_service() -> None:
    assert await named("quality", *FRESH, registered("rm")) == "quality"
    assert await named(UNKNOWN, *FRESH, registered("rm"), query=b"service=quality") == "quality"
