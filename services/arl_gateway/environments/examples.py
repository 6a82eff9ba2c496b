"""Examples of environments in the OpenAPI document."""

from typing import Any

__all__ = ["ENVIRONMENT", "ENVIRONMENT_ID", "FORKS", "SNAPSHOT"]

ENVIRONMENT_ID = "01920000-0000-7000-8000-000000000003"
ENVIRONMENT: dict[str, Any] = {
    "id": ENVIRONMENT_ID,
    "task": "ai-coding",
    "trajectory": "s12-p3-r5",
    "state": "live",
    "node": "node-1",
    "template": "host",
    "memory_mib": 512,
    "disk_mib": 256,
    "pids": 256,
    "idle_ttl_s": 3600,
    "network": "none",
    "created_at": "2026-03-02T09:00:00Z",
    "last_used_at": "2026-03-02T09:00:00Z",
}
SNAPSHOT: dict[str, Any] = {
    "id": "01920000-0000-7000-8000-000000000004",
    "task": "ai-coding",
    "trajectory": "s12-p3-r5",
    "environment": ENVIRONMENT_ID,
    "node": "node-1",
    "template": "host",
    "memory_mib": 512,
    "disk_mib": 256,
    "pids": 256,
    "members": 12,
    "bytes": 48210,
    "created_at": "2026-03-02T09:05:00Z",
}
FORKS: dict[str, Any] = {
    "source": ENVIRONMENT_ID,
    "items": [{**ENVIRONMENT, "id": "01920000-0000-7000-8000-000000000007", "trajectory": "s12-p3-r6"}],
    "processes_copied": False,
    "leftover_processes": 2,
}
