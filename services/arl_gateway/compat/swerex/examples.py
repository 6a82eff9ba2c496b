"""Examples in the OpenAPI document for bodies of SWE-ReX's protocol, by operation id."""

from collections.abc import Mapping
from typing import Any

__all__ = ["EXAMPLES"]

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "swerex_create_session": {
        "agent": {
            "summary": "The first request of SWE-agent",
            "value": {"session": "default", "startup_source": ["/root/.bashrc"], "startup_timeout": 10},
        }
    },
    "swerex_run_in_session": {
        "command": {
            "summary": "A command of SWE-agent",
            "value": {
                "action_type": "bash",
                "command": "cd /testbed && python -m pytest -q",
                "session": "default",
                "timeout": 30,
                "check": "silent",
            },
        },
        "interrupt": {
            "summary": "Interrupt the running command",
            "value": {"action_type": "bash_interrupt", "session": "default"},
        },
    },
    "swerex_close_session": {"session": {"summary": "The default session", "value": {"session": "default"}}},
    "swerex_execute": {
        "shell": {
            "summary": "A command of mini-swe-agent",
            "value": {
                "command": "git diff | head -50",
                "shell": True,
                "cwd": "/testbed",
                "timeout": 30,
                "merge_output_streams": True,
            },
        },
        "program": {
            "summary": "A program and its arguments",
            "value": {"command": ["python3", "-c", "print(6 * 7)"], "check": True},
        },
    },
    "swerex_read_file": {"text": {"summary": "A patch", "value": {"path": "/root/model.patch"}}},
    "swerex_upload": {
        "script": {
            "summary": "A file with its target path",
            "value": {"file": "echo ran\n", "target_path": "/root/run.sh", "unzip": False},
        }
    },
    "swerex_write_file": {"text": {"summary": "A script", "value": {"path": "/root/run.sh", "content": "echo ran\n"}}},
}
