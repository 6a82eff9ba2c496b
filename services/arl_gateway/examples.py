"""Examples of request and response bodies in the OpenAPI document, by operation id. A test validates each of them."""

from collections.abc import Mapping
from typing import Any

from arl_gateway.compat.examples import EXAMPLES as COMPATIBLE

__all__ = ["EXAMPLES", "RESPONSE_EXAMPLES"]

COMMAND_EXAMPLE: dict[str, Any] = {
    "task": "ai-coding",
    "kind": "exec",
    "argv": ["python3", "-c", "print(6 * 7)"],
    "timeout_s": 10,
}
TRAJECTORY_EXAMPLE: dict[str, Any] = {
    "task": "ai-coding",
    "trajectory": "s12-p3-r5",
    "step": 12,
    "kind": "exec",
    "argv": ["python3", "-m", "pytest", "-q"],
    "environment": {"scope": "trajectory"},
    "demand": {"cpu": {"min": 1, "max": 4}, "memory_mib": 512},
    "elasticity": {"model": "amdahl", "parallel_fraction": 0.9},
    "timeout_s": 120,
    "deadline_s": 300,
    "labels": {"repo": "toolz"},
}
PROGRAM_EXAMPLE: dict[str, Any] = {
    "task": "ai-coding",
    "kind": "exec",
    "source": "print(open('answer.txt').read())",
    "files": {"answer.txt": "NDI="},
    "demand": {"cpu": 0.5, "memory_mib": 128, "pids": 16},
}
EXAMPLE_ID = "01920000-0000-7000-8000-000000000000"

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "submit_action": {
        "command": {"summary": "A command in a fresh environment", "value": COMMAND_EXAMPLE},
        "trajectory": {"summary": "Tests in a rollout's own environment, on 1 to 4 cores", "value": TRAJECTORY_EXAMPLE},
        "program": {"summary": "A Python program with a file beside it", "value": PROGRAM_EXAMPLE},
    },
    "register_reward_service": {
        "reward": {
            "summary": "A scalar reward model",
            "value": {
                "name": "helpfulness",
                "kind": "sequence-classifier",
                "source": "rewards/helpfulness-8b",
                "options": {"dtype": "bfloat16", "max_tokens": 4096},
            },
        },
        "judge": {
            "summary": "A judge that an engine of the nodes answers for",
            "value": {
                "name": "judge",
                "kind": "judge",
                "source": "qwen",
                "options": {
                    "judge": {
                        "prompt": "{prompt}\n\nA solution:\n{response}\n\nEnd with `verdict: right` or `wrong`.",
                        "samples": 4,
                        "temperature": 0.7,
                        "pattern": "verdict: (\\w+)",
                        "words": {"right": 1, "wrong": 0},
                        "aggregate": "majority",
                    }
                },
            },
        },
    },
    "submit_actions": {
        "two": {"summary": "Two actions", "value": {"actions": [COMMAND_EXAMPLE, PROGRAM_EXAMPLE]}},
        "gang": {
            "summary": "Two that start in one moment or not at all",
            "value": {"actions": [COMMAND_EXAMPLE, COMMAND_EXAMPLE], "gang": True},
        },
    },
    "wait_for_actions": {
        "any": {
            "summary": "Whichever settles first",
            "value": {"ids": [EXAMPLE_ID], "until": "any", "timeout_s": 30},
        }
    },
    "send_input": {
        "line": {"summary": "A line, and nothing after it", "value": {"text": "6 * 7\n", "offset": 0, "end": True}}
    },
    "change_node": {
        "drain": {
            "summary": "Empty it: what lives there has an hour to end",
            "value": {"cordoned": True, "drain_deadline_s": 3600},
        },
        "open": {"summary": "Open it again", "value": {"cordoned": False}},
    },
    "create_environment": {
        "repository": {
            "summary": "With a file and a variable of every action in it",
            "value": {
                "task": "ai-coding",
                "trajectory": "s12-p3-r5",
                "memory_mib": 512,
                "disk_mib": 256,
                "env": {"PYTHONDONTWRITEBYTECODE": "1"},
                "files": {"src/solution.py": "cHJpbnQoNDIpCg=="},
            },
        }
    },
    "create_key": {
        "reader": {
            "summary": "One that only reads, for a month",
            "value": {"scopes": ["actions:read"], "expires_in_s": 2592000},
        }
    },
    "change_queue": {
        "limit": {"summary": "At most 5000 may wait", "value": {"max_queued": 5000}},
        "default": {"summary": "As many as this installation allows", "value": {"max_queued": None}},
        "pause": {"summary": "Nothing of it starts", "value": {"paused": True}},
        "weight": {"summary": "Twice the share of a queue with weight 1", "value": {"weight": 2}},
        "quota": {
            "summary": "At most 64 run at once, 8 of them scored by the service `judge`",
            "value": {"quota": {"running": 64, "reward_services": {"judge": 8}}},
        },
    },
    "score_items": {
        "two": {
            "summary": "Two answers and what is right",
            "value": {
                "service": "minilm",
                "task": "qa",
                "trajectory": "s12-p3-r5",
                "items": [
                    {"text": "It is Paris.", "reference": "Paris"},
                    {"text": "It is Rome.", "reference": "Paris"},
                ],
            },
        }
    },
    **COMPATIBLE,
    "change_project": {"weight": {"summary": "Half the share of a project with weight 1", "value": {"weight": 0.5}}},
}

RESPONSE_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "list_audit_log": {
        "changes": {
            "summary": "A queue that was limited, and a key that was created before",
            "value": {
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
            },
        }
    },
}
"""Bodies of successful responses, by operation id."""
