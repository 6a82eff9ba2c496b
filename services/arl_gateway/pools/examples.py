"""Examples of node pools and of the backlog in the OpenAPI document."""

from typing import Any

__all__ = ["BACKLOG", "POOL", "PUBLISH_POOL"]

PUBLISH_POOL: dict[str, Any] = {
    "controller": "head-4242",
    "lease_s": 10,
    "engine": "local",
    "kind": "cpu",
    "min_nodes": 1,
    "max_nodes": 8,
    "cores_per_node": 64,
    "wanted": 3,
    "present": 2,
    "ready": 2,
    "draining": [],
    "decision": "scale_up",
    "reason": "5760 core-seconds wait, and 128 cores are busy: 3 nodes start them within 30 s",
}
POOL: dict[str, Any] = {
    "name": "cpu",
    **{name: value for name, value in PUBLISH_POOL.items() if name != "lease_s"},
    "decided_at": "2026-03-02T09:00:00Z",
    "updated_at": "2026-03-02T09:00:01Z",
    "controlled": True,
}
BACKLOG: dict[str, Any] = {
    "items": [
        {
            "kind": "cpu",
            "waiting": 96,
            "waiting_cores": 96,
            "waiting_core_s": 5760,
            "unknown_cores": 0,
            "pinned": 4,
            "oldest_s": 12.5,
            "running": 128,
            "busy_cores": 128,
        }
    ]
}
