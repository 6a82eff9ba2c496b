"""Test that the API answers generated requests only as the OpenAPI document describes."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import pytest_asyncio
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig

from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from support.postgres import Databases
from support.system import API_KEY, System, running_system

load_all_checks()
CHECKS = schemathesis.checks.CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "ignored_auth",
    ]
)
ACTION: dict[str, Any] = {"task": "t", "trajectory": "known", "argv": ["true"], "demand": {"cpu": 0.1}}
OWN_KEY = "1"
"""The id of the first key. Revoking it would break the test itself."""
LONGEST_WAIT_S = 0.05
"""The longest wait of a generated request in seconds; it keeps the test fast."""


def the_document() -> dict[str, Any]:
    gateway = GatewaySettings(
        port=1,
        database_url="postgresql://nobody",
        service_token="t" * 16,
        admission_url="http://nobody",
        scheduler_url="http://nobody",
    )
    document = build(gateway).openapi()
    _describe_events(document)
    return document


def _describe_events(document: dict[str, Any]) -> None:
    """Describe each server-sent event with the keyword of OpenAPI 3.2, so that schemathesis checks it."""
    for item in document["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                media = response.get("content", {}).get("text/event-stream", {})
                if "x-itemSchema" in media:
                    del media["schema"]
                    media["itemSchema"] = media.pop("x-itemSchema")


DOCUMENT = the_document()
CONFIG = SchemathesisConfig.from_dict(
    {"generation": {"deterministic": True, "database": "none", "with-security-parameters": False}}
)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=64, scores=True) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def known(system: System) -> dict[str, dict[str, str]]:
    """Provide path parameters that name existing resources, by route."""
    async with system.client() as api:
        action = (await api.post("/v1/actions", json=ACTION, params={"wait": 20})).json()
        key = (await api.post("/v1/admin/keys", json={})).json()
    return {
        "/v1/actions/{id}": {"id": action["id"]},
        "/v1/actions/{id}/explain": {"id": action["id"]},
        "/v1/actions/{id}/logs": {"id": action["id"]},
        "/v1/actions/{id}/input": {"id": action["id"]},
        "/v1/trajectories/{trajectory}": {"trajectory": "known"},
        "/v1/tasks/{task}/steps/{step}": {"task": "t", "step": "1"},
        "/v1/tasks/{task}/steps/{step}:end": {"task": "t", "step": "1"},
        "/v1/admin/keys/{id}": {"id": str(key["id"])},
        "/v1/admin/queues/{task}": {"task": "t"},
    }


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def _checks(case: Case) -> Any:
    """Return the checks for a case. Blocking routes may answer 503 or 504, as they document."""
    holds = case.operation.path == "/v1/scores" or "compatibility" in (case.operation.tags or ())
    return [check for check in CHECKS if check.__name__ != "not_a_server_error"] if holds else CHECKS


def ask(case: Case, system: System, session: requests.Session, known: dict[str, dict[str, str]]) -> None:
    """Send the generated request, and send it again for an existing resource."""
    _wait_briefly(case)
    if case.operation.label != "DELETE /v1/admin/keys/{id}" or str(case.path_parameters.get("id")) != OWN_KEY:
        _call(case, system, session)
    if case.operation.path in known:
        case.path_parameters = dict(known[case.operation.path])
        _call(case, system, session)
    if case.operation.label == "PATCH /v1/admin/queues/{task}":
        _open_queues(system, session)


def _open_queues(system: System, session: requests.Session) -> None:
    """Reopen all queues, so that no action waits in a queue that a case has paused."""
    url, headers = f"{system.url}/v1/admin/queues", {"Authorization": f"Bearer {API_KEY}"}
    for queue in session.get(url, headers=headers).json()["items"]:
        opened = {"paused": False, "quota": None, "max_queued": None}
        session.patch(f"{url}/{quote(queue['task'], safe='')}", headers=headers, json=opened).raise_for_status()


def _call(case: Case, system: System, session: requests.Session) -> None:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    case.call_and_validate(base_url=system.url, session=session, headers=headers, checks=_checks(case))


def _wait_briefly(case: Case) -> None:
    for place, name in ((case.query, "wait"), (case.body, "timeout_s"), (case.body, "within_s")):
        if isinstance(place, dict) and _is_a_wait(place.get(name)):
            place[name] = LONGEST_WAIT_S


def _is_a_wait(value: Any) -> bool:
    try:
        return float(value) > LONGEST_WAIT_S
    except (TypeError, ValueError):
        return False


WITH_BODY = [
    pytest.param(method, path, id=operation["operationId"])
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
]


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
def test_body_of_another_media_type_gets_a_documented_415(
    method: str, path: str, system: System, session: requests.Session
) -> None:
    """Generated cases only have bodies of the documented media type."""
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "text/plain"}
    url = system.url + path.format(task="t", name="n", id=uuid4(), port=8000)
    assert session.request(method, url, data=b"{}", headers=headers).status_code == 415
    assert "415" in DOCUMENT["paths"][path][method]["responses"]


BOUNDED = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@SCHEMA.parametrize()
@settings(BOUNDED, max_examples=6)
def test_every_response_is_documented(
    case: Case, system: System, session: requests.Session, known: dict[str, dict[str, str]]
) -> None:
    ask(case, system, session, known)


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(BOUNDED, max_examples=15)
def test_every_response_is_documented_for_many_more_requests(
    case: Case, system: System, session: requests.Session, known: dict[str, dict[str, str]]
) -> None:
    ask(case, system, session, known)
