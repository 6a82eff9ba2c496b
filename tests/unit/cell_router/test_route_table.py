"""Test which requests the router answers from one cell and which from several."""

import json
from pathlib import Path

import pytest

from arl_cell_router.routing.route_table import RouteKind, match_route

OPENAPI = json.loads((Path(__file__).parents[3] / "openapi" / "gateway.json").read_text())


@pytest.mark.parametrize(
    ("method", "path", "kind", "params"),
    [
        ("POST", "/v1/actions", "action", {}),
        ("GET", "/v1/actions", "page", {"list": "actions"}),
        ("POST", "/v1/actions:batch", "batch", {}),
        ("POST", "/v1/actions:wait", "wait", {}),
        ("GET", "/v1/actions/x/logs", "by_id", {"list": "actions", "id": "x"}),
        ("DELETE", "/v1/actions/x", "by_id", {"list": "actions", "id": "x"}),
        ("POST", "/v1/environments/x:fork", "by_id", {"list": "environments", "id": "x"}),
        ("PUT", "/v1/environments/x/files/a/b", "by_id", {"list": "environments", "id": "x"}),
        ("POST", "/v1/environments/x/swerex/run_in_session", "by_id", {"list": "environments", "id": "x"}),
        ("POST", "/t/a/v1/environments/x/swerex/execute", "by_id", {"task": "a", "list": "environments", "id": "x"}),
        ("DELETE", "/v1/trajectories/a/b", "end_trajectory", {"trajectory": "a/b"}),
        ("POST", "/v1/tasks/a/b/steps/3:end", "end_step", {}),
        ("GET", "/v1/tasks/a/steps/3", "one_cell", {}),
        ("GET", "/v1/reward-services/rm", "item", {"list": "reward-services", "name": "rm"}),
        ("POST", "/v1/reward-services", "change_all", {"list": "reward-services"}),
        ("POST", "/v1/reward-services/rm/pin", "change_all", {"list": "reward-services", "name": "rm", "verb": "pin"}),
        ("PATCH", "/v1/admin/queues/a/b", "change_all", {"list": "queues", "name": "a/b"}),
        ("DELETE", "/v1/admin/keys/4097", "revoke_key", {"id": "4097"}),
        ("PATCH", "/v1/admin/nodes/n", "named", {"list": "nodes", "name": "n"}),
        ("GET", "/v1/admin/capacity", "one_cell", {}),
        ("POST", "/v1/nodes/join", "join_node", {}),
        ("POST", "/t/a/reward-services/rm/get_reward", "compat_score", {"task": "a", "service": "rm"}),
        ("POST", "/v1/score", "compat_score", {}),
        ("POST", "/v2/rerank", "compat_score", {}),
        ("POST", "/ng-rollout/r/seed_session", "compat_score", {"trajectory": "r"}),
        ("POST", "/t/a/run_code", "compat_run", {"task": "a"}),
        ("GET", "/t/a/endpoints/search/v1/q", "compat_call", {"task": "a", "endpoint": "search"}),
        ("GET", "/openapi.json", "any", {}),
        ("GET", "/docs/", "any", {}),
        ("GET", "/v1/unknown", "any", {}),
    ],
)
def test_requests_have_their_route(method: str, path: str, kind: str, params: dict[str, str]) -> None:
    found = match_route(method, path)
    assert (found.kind, dict(found.params)) == (kind, params)


def test_every_route_of_the_public_api_has_a_kind() -> None:
    """A new route must be decided here: only these may go to any cell."""
    free = {
        f"{method.upper()} {path}"
        for path, methods in OPENAPI["paths"].items()
        for method in methods
        if match_route(method.upper(), path.replace("{", "").replace("}", "")).kind is RouteKind.ANY
    }
    assert free == {"GET /v1/models"}


def test_templates_have_no_names_of_requests() -> None:
    assert {match_route("GET", f"/v1/actions/{id}").template for id in range(5)} == {"by_id:actions"}
