"""Examples of environments in the OpenAPI document."""

from typing import Any

__all__ = ["ENVIRONMENT", "ENVIRONMENT_ID", "FORKS", "SIGNED_PORT", "SNAPSHOT"]

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
SIGNED_PORT: dict[str, Any] = {
    "path": "/v1/ports/01920000000070008000000000000003-8000-1-1772445600-2b4f5f6a7c8d9e0f1a2b3c4d5e6f708192a3b4c5/",
    "expires_at": "2026-03-02T10:00:00Z",
}
FORKS: dict[str, Any] = {
    "source": ENVIRONMENT_ID,
    "items": [{**ENVIRONMENT, "id": "01920000-0000-7000-8000-000000000007", "trajectory": "s12-p3-r6"}],
    "processes_copied": False,
    "leftover_processes": 2,
}
