"""Examples of successful responses in the OpenAPI document, by operation id and status. A test validates them."""

from collections.abc import Mapping
from typing import Any

from arl_gateway.compat.response_examples import RESPONSE_EXAMPLES as COMPATIBLE
from arl_gateway.environments.examples import ENVIRONMENT, FORKS, SIGNED_PORT, SNAPSHOT
from arl_gateway.images.routes import NODE_IMAGE
from arl_gateway.pools.examples import BACKLOG, POOL
from arl_gateway.steps.examples import STEP_REPORT

__all__ = ["RESPONSE_EXAMPLES"]

ACTION_ID = "01920000-0000-7000-8000-000000000001"
OTHER_ACTION_ID = "01920000-0000-7000-8000-000000000002"
SCORE_ACTION_ID = "01920000-0000-7000-8000-000000000005"
NODE_EPOCH = "01920000-0000-7000-8000-000000000006"

QUEUED_ACTION: dict[str, Any] = {
    "id": ACTION_ID,
    "task": "ai-coding",
    "trajectory": "s12-p3-r5",
    "kind": "exec",
    "state": "queued",
    "grant_no": 0,
    "failures": 0,
    "class_key": "4611686018427387904",
    "critical": False,
    "demand": {"cpu_milli": 1000, "memory_mib": 512, "disk_mib": 128, "pids": 256},
    "cancel_requested": False,
    "created_at": "2026-03-02T09:00:00Z",
    "times": {},
    "labels": {"repo": "toolz"},
}
RUNNING_ACTION: dict[str, Any] = {
    **QUEUED_ACTION,
    "state": "running",
    "grant_no": 1,
    "node": "node-1",
    "allocation": {"cpu_milli": 1000, "memory_mib": 512, "disk_mib": 128, "pids": 256},
    "granted_at": "2026-03-02T09:00:00.120Z",
    "started_at": "2026-03-02T09:00:00.125Z",
    "times": {"queue_s": 0.12},
}
LISTED_ACTION: dict[str, Any] = {
    **RUNNING_ACTION,
    "state": "settled",
    "outcome": "ok",
    "settled_at": "2026-03-02T09:00:01.440Z",
    "times": {"queue_s": 0.12, "run_s": 1.3, "counted_s": 1.3, "overhead_s": 0.02, "act_s": 1.44},
}
SETTLED_ACTION: dict[str, Any] = {
    **LISTED_ACTION,
    "result": {
        "grant_no": 1,
        "exit_code": 0,
        "stdout": {"text": "42\n", "total_bytes": 3, "truncated": False},
        "stderr": {"text": "", "total_bytes": 0, "truncated": False},
        "files": {},
        "missing_files": [],
        "cpu_s": 1.21,
        "peak_memory_mib": 38.5,
        "leftover_processes": 0,
        "enforcement": {"cpu": "enforced", "memory": "enforced", "pids": "enforced", "disk": "enforced"},
    },
}
CANCELLED_ACTION: dict[str, Any] = {
    **QUEUED_ACTION,
    "state": "settled",
    "outcome": "cancelled",
    "cancel_requested": True,
    "settled_at": "2026-03-02T09:00:03Z",
    "times": {"queue_s": 3.0, "act_s": 3.0},
}
REWARD_SERVICE: dict[str, Any] = {
    "name": "helpfulness",
    "kind": "sequence-classifier",
    "model": "rewards/helpfulness-8b",
    "max_tokens": 4096,
    "registered": True,
    "pinned": False,
    "drained": False,
    "options": {"dtype": "bfloat16", "max_tokens": 4096},
    "available": True,
    "nodes": [
        {
            "node": "gpu-1",
            "available": True,
            "state": "resident",
            "device": "cuda",
            "slots": 64,
            "in_flight": 3,
            "batches": 1204,
            "scores": 38211,
            "health": "ok",
        }
    ],
}
NEW_REWARD_SERVICE: dict[str, Any] = {**REWARD_SERVICE, "available": False, "nodes": []}
PINNED_REWARD_SERVICE: dict[str, Any] = {**REWARD_SERVICE, "pinned": True}
ENDPOINT: dict[str, Any] = {
    "name": "search",
    "methods": ["GET", "POST"],
    "url": "https://search.example.com/v1",
    "available": True,
    "nodes": [
        {
            "node": "api-1",
            "available": True,
            "concurrency": 32,
            "window": 32,
            "per_s": 50.0,
            "burst": 50,
            "in_flight": 4,
            "requests": 18230,
            "throttled": 12,
            "health": "ok",
        }
    ],
}
KEY: dict[str, Any] = {
    "id": 2,
    "project": "default",
    "prefix": "tk_AbCdE",
    "fingerprint": "9f86d081884c7d65",
    "scopes": ["actions:read"],
    "created_at": "2026-03-02T09:00:00Z",
    "expires_at": "2026-04-01T09:00:00Z",
}
QUEUE: dict[str, Any] = {
    "id": 1,
    "task": "ai-coding",
    "max_queued": 5000,
    "queued": 120,
    "running": 64,
    "paused": False,
    "weight": 2.0,
    "quota": {"running": 64, "reward_services": {"judge": 8}},
}
NODE: dict[str, Any] = {
    "name": "node-1",
    "kind": "cpu",
    "driver": "namespaces",
    "epoch": NODE_EPOCH,
    "capacity": {"cpu_milli": 64000, "memory_mib": 262144, "disk_mib": 1048576, "pids": 65536},
    "registered_at": "2026-03-02T08:00:00Z",
    "last_heartbeat_at": "2026-03-02T09:15:00Z",
    "alive": True,
    "cordoned": False,
    "drained": False,
    "running": 14,
    "allocated_cpu_milli": 20000,
    "environments": 9,
    "enforced": [{"name": "memory", "level": "enforced", "mechanism": "cgroup v2", "reason": "", "fix": ""}],
    "templates": [],
}
DRAINING_NODE: dict[str, Any] = {**NODE, "cordoned": True, "drain_deadline_at": "2026-03-02T10:15:00Z"}
FORECAST: dict[str, Any] = {
    "nodes": 4,
    "cpu_milli": 256000,
    "queued": 800,
    "simulated": 800,
    "starts_now": 40,
    "started": 780,
    "mean_wait_s": 41.2,
    "p90_wait_s": 88.0,
    "complete": False,
    "unstarted": [{"reason": "task_at_quota", "actions": 20}],
}
EVENTS = (
    'event: stdout\ndata: {"offset":0,"text":"42\\n"}\nid: 1:3:0\n\n'
    'event: end\ndata: {"state":"settled","outcome":"ok","exit_code":0,"stdout_bytes":3}\nid: 1:3:0\n\n'
)
TRACE: dict[str, Any] = {
    "id": ACTION_ID,
    "trace_id": "01920000000070008000000000000001",
    "state": "settled",
    "outcome": "ok",
    "duration_ms": 1440.0,
    "spans": [
        {
            "name": "create action",
            "kind": "producer",
            "span_id": "00f067aa0ba902b7",
            "started_at": "2026-03-02T09:00:00Z",
            "ended_at": "2026-03-02T09:00:01.440Z",
            "offset_ms": 0.0,
            "duration_ms": 1440.0,
            "attributes": {"messaging.destination.name": "ai-coding", "tangram.outcome": "ok"},
        },
        {
            "name": "process action",
            "kind": "consumer",
            "span_id": "00f067aa0ba902b8",
            "parent_span_id": "00f067aa0ba902b7",
            "attempt": 1,
            "started_at": "2026-03-02T09:00:00.125Z",
            "ended_at": "2026-03-02T09:00:01.425Z",
            "offset_ms": 125.0,
            "duration_ms": 1300.0,
            "attributes": {"tangram.node": "node-1"},
        },
    ],
}
EXPLANATION: dict[str, Any] = {
    "id": ACTION_ID,
    "state": "queued",
    "created_at": "2026-03-02T09:00:00Z",
    "times": {},
    "wait": {
        "reason": "waits_for_capacity",
        "node": "node-1",
        "shortfalls": [{"resource": "cpu_milli", "needed": 4000, "free": 1500, "capacity": 64000}],
        "unenforced": [],
        "ahead": {"priority": 0, "in_task": 0, "other_tasks": 0, "truncated": False},
        "effective_arrival_at": "2026-03-02T08:59:20Z",
        "size_penalty_s": 12.5,
        "excess_usage_s": 0.0,
        "fair_share": 0.5,
        "resource": "cpu_milli",
        "at_min": {"amount": 4000, "seconds": 31.0},
        "at_max": {"amount": 8000, "seconds": 18.2},
        "basis": "learnt",
        "observed_runs": 64,
        "backlog_s": 9.4,
    },
}
CONSISTENCY: dict[str, Any] = {
    "at": "2026-03-02T09:15:00Z",
    "actions": {"queued": 120, "running": 64, "settled": 18230},
    "nodes": [{"node": "node-1", "attempts": 14, "environments": 9}],
    "allocations": [{"node": "node-1", "resource": "cpu_milli", "allocated": 20000, "capacity": 64000}],
    "findings": [],
}
STRAGGLER: dict[str, Any] = {
    "id": ACTION_ID,
    "task": "ai-coding",
    "trajectory": "s12-p3-r5",
    "node": "node-1",
    "allocation": {"cpu_milli": 1000, "memory_mib": 512, "disk_mib": 128, "pids": 256},
    "elapsed_s": 412.0,
    "limit_s": 95.0,
}
AUDIT_LOG: dict[str, Any] = {
    "items": [
        {
            "id": 8,
            "at": "2026-03-02T09:15:00Z",
            "project": "default",
            "api_key_id": 1,
            "verb": "queue.change",
            "target": "queue:ai-coding",
            "detail": {"max_queued": 5000},
        },
        {
            "id": 7,
            "at": "2026-03-02T09:00:00Z",
            "project": "default",
            "api_key_id": 1,
            "verb": "key.create",
            "target": "key:2",
            "detail": {"project": "default", "prefix": "tk_AbCdE", "scopes": ["actions:read"]},
        },
    ],
    "next_before": 7,
}
SCORES: dict[str, Any] = {
    "action": SCORE_ACTION_ID,
    "first": 0,
    "scores": [{"score": 0.93, "truncated": False}, {"score": 0.41, "truncated": False}],
}
QUEUE_FULL: dict[str, Any] = {
    "title": "The task's queue is full",
    "status": 429,
    "detail": "actions.1: the queue of task 'ai-coding' is full",
    "code": "queue_full",
    "retry_after_s": 1,
}


def _example(summary: str, value: Any) -> dict[str, Any]:
    return {"example": {"summary": summary, "value": value}}


RESPONSE_EXAMPLES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("submit_action", "200"): _example("The action settled within `wait`", SETTLED_ACTION),
    ("submit_action", "202"): _example("A queued action", QUEUED_ACTION),
    ("submit_actions", "202"): _example(
        "One accepted and one refused action", {"items": [{"id": ACTION_ID}, {"problem": QUEUE_FULL}]}
    ),
    ("wait_for_actions", "200"): _example(
        "One settled and one pending action",
        {"settled": [SETTLED_ACTION], "pending": [OTHER_ACTION_ID], "unknown": []},
    ),
    ("get_action", "200"): _example("A settled action", SETTLED_ACTION),
    ("get_step", "200"): _example("A step whose last trajectories are running", STEP_REPORT),
    ("list_actions", "200"): _example("A page with one action", {"items": [LISTED_ACTION]}),
    ("cancel_action", "200"): _example("A cancelled action", CANCELLED_ACTION),
    ("stream_logs", "200"): _example("One line of output, then the end", EVENTS),
    ("send_input", "200"): _example("Six bytes so far", {"offset": 6}),
    ("get_trace", "200"): _example("A settled action", TRACE),
    ("explain_action", "200"): _example("A queued action", EXPLANATION),
    ("create_environment", "201"): _example("A new environment", ENVIRONMENT),
    ("create_environment", "202"): _example(
        "The action that creates the environment", {**QUEUED_ACTION, "kind": "environment.create"}
    ),
    ("fork_environment", "201"): _example("A fork of an environment with two running processes", FORKS),
    ("update_environment", "200"): _example(
        "An environment with two allowed hosts",
        {**ENVIRONMENT, "network": {"allow": ["pypi.org", "files.pythonhosted.org"]}},
    ),
    ("sign_port", "200"): _example("A URL of port 8000", SIGNED_PORT),
    ("get_environment", "200"): _example("A live environment", ENVIRONMENT),
    ("list_environments", "200"): _example("A page with one environment", {"items": [ENVIRONMENT]}),
    ("read_file", "200"): _example("A text file", "print(42)\n"),
    ("list_files", "200"): _example(
        "A directory with one file",
        {
            "items": [
                {"path": "src", "type": "directory", "size": 0, "mode": 493, "modified_at": "2026-03-02T09:00:00Z"},
                {
                    "path": "src/solution.py",
                    "type": "file",
                    "size": 10,
                    "mode": 420,
                    "modified_at": "2026-03-02T09:00:00Z",
                },
            ]
        },
    ),
    ("write_archive", "200"): _example("The archive added 12 members", {"members": 12, "bytes": 48210}),
    ("create_snapshot", "201"): _example("A new snapshot", SNAPSHOT),
    ("get_snapshot", "200"): _example("A snapshot", SNAPSHOT),
    ("list_snapshots", "200"): _example("A page with one snapshot", {"items": [SNAPSHOT]}),
    ("score_items", "200"): _example("Two scores", SCORES),
    ("register_reward_service", "201"): _example("A new service, before a node has loaded it", NEW_REWARD_SERVICE),
    ("get_reward_service", "200"): _example("A service on one node", REWARD_SERVICE),
    ("list_reward_services", "200"): _example("One service", {"items": [REWARD_SERVICE]}),
    ("change_reward_service", "200"): _example("A pinned service", PINNED_REWARD_SERVICE),
    ("get_endpoint", "200"): _example("An endpoint of one broker", ENDPOINT),
    ("list_endpoints", "200"): _example("One endpoint", {"items": [ENDPOINT]}),
    ("create_key", "201"): _example("A new key", {**KEY, "key": "tk_AbCdExample"}),
    ("list_keys", "200"): _example("A page with one key", {"items": [KEY]}),
    ("revoke_key", "200"): _example("A revoked key", {**KEY, "revoked_at": "2026-03-03T09:00:00Z"}),
    ("list_queues", "200"): _example("A page with one queue", {"items": [QUEUE]}),
    ("change_queue", "200"): _example("The changed queue", QUEUE),
    ("list_projects", "200"): _example(
        "A page with two projects",
        {"items": [{"id": 1, "name": "default", "weight": 1.0}, {"id": 2, "name": "research", "weight": 0.5}]},
    ),
    ("change_project", "200"): _example("The changed project", {"id": 2, "name": "research", "weight": 0.5}),
    ("list_nodes", "200"): _example("One node", {"items": [NODE]}),
    ("change_node", "200"): _example("A draining node", DRAINING_NODE),
    ("list_images", "200"): _example("An image that is being pulled", {"items": [NODE_IMAGE]}),
    ("pull_images", "200"): _example("Two images on four nodes", {"count": 8}),
    ("remove_images", "200"): _example("One image on four nodes", {"count": 4}),
    ("list_pools", "200"): _example("One pool", {"items": [POOL]}),
    ("publish_pool", "200"): _example("A pool that grows", POOL),
    ("get_backlog", "200"): _example("The backlog of CPU nodes", BACKLOG),
    ("check_consistency", "200"): _example("A report without findings", CONSISTENCY),
    ("plan_capacity", "200"): _example(
        "The current nodes, and twice as many",
        {
            "current": FORECAST,
            "hypothetical": {**FORECAST, "nodes": 8, "cpu_milli": 512000, "mean_wait_s": 12.1, "p90_wait_s": 30.4},
        },
    ),
    ("list_stragglers", "200"): _example("One straggler", {"items": [STRAGGLER]}),
    ("list_audit_log", "200"): _example("A change of a queue and a created key", AUDIT_LOG),
    **{(operation, "200"): examples for operation, examples in COMPATIBLE.items()},
}
"""Examples of successful responses. Responses without a body and tar archives have none."""
