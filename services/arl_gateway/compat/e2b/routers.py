"""The routers of E2B's protocol."""

from arl_gateway.compat.e2b import control_routes, snapshot_routes
from arl_gateway.compat.e2b.envd import content_routes, filesystem_routes, interpreter_routes, process_routes

__all__ = ["ROUTERS"]

# `content_routes` and `control_routes` refuse every other path, of a port and of a sandbox.
_MODULES = (
    process_routes,
    filesystem_routes,
    interpreter_routes,
    content_routes,
    snapshot_routes,
    control_routes,
)
ROUTERS = tuple(each.router for each in _MODULES)
