"""`/docs`: the built site or a list of operations, without an API key and without other hosts."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings

SECRET = "outside of the site"


def settings(docs_dir: Path) -> GatewaySettings:
    return GatewaySettings(
        port=1,
        database_url="postgresql://",
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
        docs_dir=docs_dir,
    )


def client(docs_dir: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(build(settings(docs_dir))), base_url="http://gateway")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET)
    site = tmp_path / "site"
    (site / "start").mkdir(parents=True)
    (site / "index.html").write_text("<h1>Home</h1>")
    (site / "404.html").write_text("<h1>No such page</h1>")
    (site / "start" / "index.html").write_text("<h1>Start</h1>")
    (site / "leak.txt").symlink_to(tmp_path / "secret.txt")
    return site


@pytest_asyncio.fixture
async def api(site: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client(site) as api:
        yield api


class TestBuiltSite:
    @pytest.mark.parametrize(("path", "text"), [("/docs/", "Home"), ("/docs/start/", "Start")])
    async def test_page_is_served_without_a_key(self, api: httpx.AsyncClient, path: str, text: str) -> None:
        response = await api.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert text in response.text

    async def test_path_without_a_slash_leads_to_the_site(self, api: httpx.AsyncClient) -> None:
        response = await api.get("/docs", follow_redirects=True)
        assert (response.status_code, response.url.path) == (200, "/docs/")

    @pytest.mark.parametrize(("path", "to"), [("/docs", "docs/"), ("/docs/start", "start/")])
    async def test_redirect_does_not_use_the_host_of_the_client(
        self, api: httpx.AsyncClient, path: str, to: str
    ) -> None:
        response = await api.get(path, headers={"host": "evil.example"})
        assert (response.status_code, response.headers["location"]) == (307, to)

    async def test_unknown_page_is_the_error_page(self, api: httpx.AsyncClient) -> None:
        response = await api.get("/docs/none/")
        assert (response.status_code, "No such page" in response.text) == (404, True)

    @pytest.mark.parametrize(
        "path",
        [
            "../secret.txt",
            "start/../../../etc/passwd",
            "..",
            "start/../../secret.txt",
            "/etc/passwd",
            "leak.txt",
            "a\0b",
        ],
    )
    async def test_path_outside_the_site_is_not_found(self, site: Path, path: str) -> None:
        app = build(settings(site))

        async def with_path(scope: Any, receive: Any, send: Any) -> None:
            # A client would normalize the path; a hostile one does not.
            await app(scope | {"path": f"/docs/{path}"}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(with_path), base_url="http://gateway") as api:
            response = await api.get("/docs/")
        assert response.status_code == 404
        assert SECRET not in response.text

    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
    async def test_site_is_read_only(self, api: httpx.AsyncClient, method: str) -> None:
        response = await api.request(method, "/docs/")
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


class TestOperationList:
    async def test_page_lists_every_operation_if_no_site_is_built(self, tmp_path: Path) -> None:
        async with client(tmp_path / "none") as api:
            page, document = (await api.get("/docs/")).text, (await api.get("/openapi.json")).json()
        assert "make docs" in page
        assert page.count("<tr>") == sum(len(operations) for operations in document["paths"].values())
        assert "/v1/actions/{id}" in page

    async def test_page_loads_nothing_from_other_hosts(self, tmp_path: Path) -> None:
        async with client(tmp_path / "none") as api:
            page = (await api.get("/docs/")).text
        assert re.findall(r"https?://", page) == []

    async def test_site_that_is_built_later_is_served(self, tmp_path: Path) -> None:
        async with client(tmp_path / "site") as api:
            assert (await api.get("/docs/start/")).status_code == 404
            (tmp_path / "site").mkdir()
            (tmp_path / "site" / "index.html").write_text("<h1>Home</h1>")
            assert (await api.get("/docs/")).text == "<h1>Home</h1>"
