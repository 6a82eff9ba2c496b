"""Routes at the root, and below `/t/{task}` and `/reward-services/{service}` for clients that accept only a base
URL.
"""

from fastapi import APIRouter
from starlette.routing import Mount

from arl_gateway.compat import nemo_gym, openrlhf, slime, upstream, vllm, vllm_pairs
from arl_gateway.compat.e2b import control_routes, snapshot_routes
from arl_gateway.compat.e2b.envd import content_routes, filesystem_routes, interpreter_routes, process_routes
from arl_gateway.compat.openai import chat_completions, completions, models
from arl_gateway.compat.sandbox_fusion import routes
from arl_gateway.compat.swerex import routes as swerex

__all__ = ["E2B_ROUTERS", "PREFIXED_MOUNTS", "ROUTERS"]

_MODULES = (
    openrlhf,
    slime,
    vllm,
    vllm_pairs,
    chat_completions,
    completions,
    nemo_gym,
    models,
    routes,
    swerex,
    upstream,
)
ROUTERS = tuple(each.router for each in _MODULES)
# `content_routes` and `control_routes` refuse every other path, of a port and of a sandbox.
_E2B_MODULES = (
    process_routes,
    filesystem_routes,
    interpreter_routes,
    content_routes,
    snapshot_routes,
    control_routes,
)
E2B_ROUTERS = tuple(each.router for each in _E2B_MODULES)
PREFIXES = (
    "/t/{task}/reward-services/{service}",
    "/t/{task}",
    "/reward-services/{service}",
    "/ng-rollout/{trajectory}",
)
"""Path prefixes of the compatible routes. `/ng-rollout/{trajectory}` is NeMo-Gym's own."""


def _joined_router() -> APIRouter:
    """Return one router with all routes. Its paths are those of the root with a prefix, so OpenAPI omits them."""
    joined = APIRouter(redirect_slashes=False)
    for each in ROUTERS:
        joined.include_router(each)
    return joined


PREFIXED_MOUNTS = [Mount(prefix, app=_joined_router()) for prefix in PREFIXES]
