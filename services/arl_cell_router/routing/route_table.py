"""The table of routes: requests of one cell, and requests that the router answers from several cells."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["RouteKind", "RouteMatch", "match_route"]


class RouteKind(StrEnum):
    """The ways to serve a request."""

    ACTION = "action"
    ENVIRONMENT = "environment"
    SCORE = "score"
    COMPAT_SCORE = "compat_score"
    COMPAT_RUN = "compat_run"
    """SandboxFusion: a repeated request resumes the run of the first, so equal bodies go to one cell."""
    COMPAT_CALL = "compat_call"
    BY_ID = "by_id"
    BATCH = "batch"
    WAIT = "wait"
    PAGE = "page"
    """A list with pages in order of time, merged from all cells."""
    TABLE = "table"
    """A list by name, merged from all cells."""
    ITEM = "item"
    """One item of a list by name, merged from all cells."""
    CHANGE_ALL = "change_all"
    CREATE_KEY = "create_key"
    REVOKE_KEY = "revoke_key"
    END_TRAJECTORY = "end_trajectory"
    END_STEP = "end_step"
    """The end of a step, whose trajectories may be in all cells."""
    NAMED = "named"
    """A change of a node or a pool, which belongs to one cell."""
    ONE_CELL = "one_cell"
    """A report about one cell; the header must name it."""
    JOIN_NODE = "join_node"
    """The request of a new node, which joins at the gateway of its cell."""
    ANY = "any"


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a request, its template for metrics, and the parameters in its path."""

    kind: RouteKind
    template: str
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_upstream(self) -> bool:
        """Return True if the response is that of an external API, which is never changed."""
        return self.kind is RouteKind.COMPAT_CALL


_PREFIX = r"(?:/t/(?P<task>[^/]+))?(?:/reward-services/(?P<service>[^/]+))?(?:/ng-rollout/(?P<trajectory>[^/]+))?"
_SCORES = (
    "get_reward|slime/reward|generate|seed_session|verify|pooling|v1/embeddings|v1/chat/completions|v1/completions"
    "|(?:v1/)?classify|(?:v1/)?score|(?:v[12]/)?rerank"
)
_RULES: tuple[tuple[str, str, RouteKind], ...] = (
    ("POST", "/v1/actions", RouteKind.ACTION),
    ("POST", "/v1/actions:batch", RouteKind.BATCH),
    ("POST", "/v1/actions:wait", RouteKind.WAIT),
    ("GET", "/v1/(?P<list>actions|environments|snapshots)", RouteKind.PAGE),
    ("POST", "/v1/environments", RouteKind.ENVIRONMENT),
    ("POST", "/v1/(?P<list>environments)/(?P<id>[^/:]+):fork", RouteKind.BY_ID),
    ("*", "/v1/(?P<list>actions|environments|snapshots)/(?P<id>[^/]+)(?:/.*)?", RouteKind.BY_ID),
    ("POST", "/v1/scores", RouteKind.SCORE),
    ("DELETE", "/v1/trajectories/(?P<trajectory>.+)", RouteKind.END_TRAJECTORY),
    ("POST", "/v1/tasks/.+/steps/[^/]+:end", RouteKind.END_STEP),
    ("GET", "/v1/tasks/.+/steps/[^/]+", RouteKind.ONE_CELL),
    ("GET", "/v1/(?P<list>reward-services|endpoints)", RouteKind.TABLE),
    ("GET", "/v1/(?P<list>reward-services|endpoints)/(?P<name>[^/]+)", RouteKind.ITEM),
    ("*", "/v1/(?P<list>reward-services)(?:/(?P<name>[^/]+)(?:/(?P<verb>[^/]+))?)?", RouteKind.CHANGE_ALL),
    ("GET", "/v1/admin/(?P<list>nodes|pools|images|queues|projects|keys|stragglers)", RouteKind.TABLE),
    ("POST", "/v1/admin/keys", RouteKind.CREATE_KEY),
    ("DELETE", "/v1/admin/keys/(?P<id>[^/]+)", RouteKind.REVOKE_KEY),
    ("*", "/v1/admin/(?P<list>queues|projects)/(?P<name>.+)", RouteKind.CHANGE_ALL),
    ("*", "/v1/admin/(?P<list>nodes|pools)/(?P<name>.+)", RouteKind.NAMED),
    ("*", "/v1/admin/.+", RouteKind.ONE_CELL),
    ("*", "/v1/nodes/join", RouteKind.JOIN_NODE),
    ("POST", f"{_PREFIX}/(?:{_SCORES})", RouteKind.COMPAT_SCORE),
    ("POST", f"{_PREFIX}/run_code", RouteKind.COMPAT_RUN),
    ("*", f"{_PREFIX}/endpoints/(?P<endpoint>[^/]+)(?:/.*)?", RouteKind.COMPAT_CALL),
    (
        "*",
        f"{_PREFIX}/v1/(?P<list>environments)/(?P<id>[^/]+)/swerex/.*",
        RouteKind.BY_ID,
    ),
)
_COMPILED = tuple((method, re.compile(pattern), kind) for method, pattern, kind in _RULES)
_READS = frozenset({"GET", "HEAD"})


def match_route(method: str, path: str) -> RouteMatch:
    """Return the route of a request. `path` is decoded and has no query."""
    for wanted, pattern, kind in _COMPILED:
        if wanted not in (method, "*"):
            continue
        found = pattern.fullmatch(path)
        if found is None:
            continue
        if kind is RouteKind.CHANGE_ALL and method in _READS:
            break
        params = {name: value for name, value in found.groupdict().items() if value is not None}
        return RouteMatch(kind, _template(kind, params), params)
    return RouteMatch(RouteKind.ANY, RouteKind.ANY)


def _template(kind: RouteKind, params: Mapping[str, str]) -> str:
    """Return a label with few values: names and ids of requests are left out."""
    listed = params.get("list")
    return f"{kind}:{listed}" if listed is not None else str(kind)
