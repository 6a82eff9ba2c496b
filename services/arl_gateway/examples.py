"""Examples of request bodies in the OpenAPI document, by operation id. A test validates each of them."""

from collections.abc import Mapping
from typing import Any

from arl_gateway.compat.examples import EXAMPLES as COMPATIBLE
from arl_gateway.pools.examples import PUBLISH_POOL

__all__ = ["EXAMPLES"]

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
    "prompt": "swe-gym/toolz-417",
    "expected_turns": 18,
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
        "trajectory": {
            "summary": "Tests in the environment of a rollout, on 1 to 4 cores",
            "value": TRAJECTORY_EXAMPLE,
        },
        "program": {"summary": "A Python program with an input file", "value": PROGRAM_EXAMPLE},
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
            "summary": "A judge that uses an engine of the nodes",
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
            "summary": "A gang of two actions",
            "value": {"actions": [COMMAND_EXAMPLE, COMMAND_EXAMPLE], "gang": True},
        },
    },
    "wait_for_actions": {
        "any": {
            "summary": "Wait for the first of several actions",
            "value": {"ids": [EXAMPLE_ID], "until": "any", "timeout_s": 30},
        }
    },
    "send_input": {
        "line": {"summary": "A line, then end of input", "value": {"text": "6 * 7\n", "offset": 0, "end": True}}
    },
    "change_node": {
        "drain": {
            "summary": "Drain the node; trajectories have one hour to end",
            "value": {"cordoned": True, "drain_deadline_s": 3600},
        },
        "open": {"summary": "Reopen the node", "value": {"cordoned": False}},
    },
    "pull_images": {
        "pool": {
            "summary": "Two images on the nodes of a pool",
            "value": {"images": ["python:3.12", "ghcr.io/owner/image:1"], "pool": "cpu"},
        }
    },
    "remove_images": {"one": {"summary": "One image", "value": {"images": ["python:3.12"]}}},
    "publish_pool": {"grow": {"summary": "The pool wants a third node", "value": PUBLISH_POOL}},
    "create_environment": {
        "repository": {
            "summary": "An environment with a file and a variable",
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
    "update_environment": {
        "setup": {
            "summary": "Hosts for the set-up phase",
            "value": {"network": {"allow": ["pypi.org", "files.pythonhosted.org", "*.github.com:443"]}},
        },
        "offline": {"summary": "No network for the agent", "value": {"network": "none"}},
    },
    "fork_environment": {
        "samples": {"summary": "Four forks that end after ten minutes", "value": {"count": 4, "idle_ttl_s": 600}}
    },
    "sign_port": {"hour": {"summary": "A URL that ends after an hour", "value": {"lifetime_s": 3600}}},
    "write_file": {"program": {"summary": "A Python program", "value": "print(42)\n"}},
    "create_key": {
        "reader": {
            "summary": "A read-only key for 30 days",
            "value": {"scopes": ["actions:read"], "expires_in_s": 2592000},
        },
        "chosen": {
            "summary": "The same key in several cells",
            "value": {"scopes": ["actions:write"], "key": "tk_0123456789abcdefghijABCDEFGHIJ0123456789_-x"},
        },
    },
    "change_queue": {
        "limit": {"summary": "Limit the queue to 5000 actions", "value": {"max_queued": 5000}},
        "default": {"summary": "Reset the limit to the default of the installation", "value": {"max_queued": None}},
        "pause": {"summary": "Pause the queue", "value": {"paused": True}},
        "weight": {"summary": "Twice the share of a queue with weight 1", "value": {"weight": 2}},
        "quota": {
            "summary": "Run at most 64 actions, 8 of them scored by `judge`",
            "value": {"quota": {"running": 64, "reward_services": {"judge": 8}}},
        },
    },
    "score_items": {
        "two": {
            "summary": "Two answers and a reference",
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
