"""The router in front of several cells: clients see one system with the public API of the gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.routing import Route

from arl_cell_router.cells.cell_link import CellLink
from arl_cell_router.cells.cell_links import CellLinks
from arl_cell_router.endpoint import RouterEndpoint
from arl_cell_router.metrics import RouterMetrics
from arl_cell_router.routing.cell_routing import CellRouting
from arl_cell_router.settings import CellRouterSettings
from arl_kit.app import create_app, metrics_token_check

__all__ = ["build"]

ARCHIVE_PATH = r"/v1/environments/[^/]+/archive$"


def build(settings: CellRouterSettings) -> FastAPI:
    """Build the application. It connects to nothing before its lifespan starts."""
    metrics = RouterMetrics()
    cells = _create_links(settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        """Keep the connections to the cells while the application runs."""
        await cells.start()
        try:
            yield
        finally:
            await cells.stop()

    async def ready(within_s: float) -> str | None:
        """Report readiness while at least one cell answers."""
        return None if cells.up else cells.all_down_error().detail

    app = create_app(
        title="ARL-Tangram cell router",
        lifespan=lifespan,
        ready=ready,
        max_body_bytes={ARCHIVE_PATH: settings.max_archive_mib << 20, "": settings.max_body_mib << 20},
        body_timeout_s=settings.body_timeout_s,
        metrics=metrics.metrics,
        scrape_dependencies=[metrics_token_check(settings)],
    )
    _add_states(app, cells, settings)
    app.router.routes.append(Route("/{path:path}", RouterEndpoint(cells)))
    return app


def _create_links(settings: CellRouterSettings, metrics: RouterMetrics) -> CellLinks:
    weights = {number: settings.cell_weights.get(number, 1.0) for number in settings.cells}
    links = [
        CellLink(
            number,
            url,
            max_connections=settings.cell_connections,
            check_s=settings.cell_check_s,
            count=partial(metrics.count_request, number),
            report=partial(metrics.set_up, number),
        )
        for number, url in settings.cells.items()
    ]
    routing = CellRouting(weights, fallback=settings.fallback_cell)
    return CellLinks(links, routing, answer_s=settings.cell_answer_s, batch_s=settings.cell_batch_s)


def _add_states(app: FastAPI, cells: CellLinks, settings: CellRouterSettings) -> None:
    @app.get("/v1/cells", include_in_schema=False)
    async def cell_states() -> dict[str, list[dict[str, Any]]]:
        """Return the state of each cell. It needs no key, as `/readyz` does not."""
        return {
            "items": [
                {
                    "cell": number,
                    "up": link.availability.is_up,
                    "problem": link.availability.problem,
                    "weight": settings.cell_weights.get(number, 1.0),
                }
                for number, link in cells.links.items()
            ]
        }
