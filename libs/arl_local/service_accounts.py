"""Unprivileged accounts of the services of a system that root starts.

Each service has a user id of its own, above every id that distributions assign to users and containers. No user is
added: an id needs no name. All services have one group, which may connect to the embedded Postgres.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from arl_kit.child_process import UnixAccount
from arl_local.supervisor import ProcessSpec

__all__ = ["NO_HOME", "SERVICE_ACCOUNT_FILE", "account_problem", "service_accounts", "service_group"]

SERVICE_ACCOUNT_FILE = "service_account"
"""File in the state directory, for `tangram doctor`: `own`, or the reason why services run as root."""

_UNPRIVILEGED_SERVICES = ("admission", "scheduler", "gateway", "api", "database-relay")
"""Services that need no rights of root. The order decides their ids.

The CPU manager talks to the launcher, which accepts only its own uid. The GPU manager reads models and runs engines
that may be accessible to root only. The broker (`api`) stays root if its uid cannot read the key files of endpoints.
"""
_FIRST_ID, _IDS_PER_SYSTEM = 0x60000000, 8
_CHECK_TIMEOUT_S = 20.0
NO_HOME = "/nonexistent"
_CHECK = """
import asyncio, json, os, sys
import arl_kit.app, asyncpg
asked = json.load(sys.stdin)
if closed := [path for path in asked["paths"] if not os.access(path, os.R_OK)]:
    sys.exit("not readable: " + ", ".join(closed))
async def connect():
    await (await asyncpg.connect(asked["url"], timeout=5)).close()
asyncio.run(connect())
"""
"""A program that loads a service's packages and connects to its database. Its input has the password."""


def service_group(state_dir: Path) -> int:
    """Return the group id of a system's services. Systems in different directories have different ids."""
    digest = hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()
    return _FIRST_ID + int(digest[:6], 16) * _IDS_PER_SYSTEM


def service_accounts(state_dir: Path) -> dict[str, UnixAccount]:
    """Return the account of each service that can run without root. Ordinary users have none."""
    if os.geteuid() != 0:
        return {}
    group = service_group(state_dir)
    return {
        name: UnixAccount(uid=group + number, gid=group) for number, name in enumerate(_UNPRIVILEGED_SERVICES, start=1)
    }


def account_problem(specs: Sequence[ProcessSpec], account: UnixAccount, *, python: str = sys.executable) -> str | None:
    """Return None if these services can run under `account`, or the reason why not."""
    if not specs:
        return None
    paths = {path for spec in specs for path in (*_paths_in(spec.env), *_key_files(spec.env))}
    asked = json.dumps({"url": specs[0].env["TANGRAM_DATABASE_URL"], "paths": sorted(paths)})
    try:
        done = subprocess.run(
            [python, "-P", "-c", _CHECK],
            input=asked,
            env={**specs[0].env, "HOME": NO_HOME},
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["the check failed"])[-1]


def _paths_in(env: Mapping[str, str]) -> list[str]:
    """Return the existing files that variables of a service name, such as certificates and the documentation."""
    return [
        value
        for name, value in env.items()
        if name not in ("PATH", "HOME") and value.startswith("/") and os.path.exists(value)
    ]


def _key_files(env: Mapping[str, str]) -> list[str]:
    """Return the existing key files of the endpoints. Wrong settings are reported by their own check."""
    try:
        endpoints = json.loads(env.get("TANGRAM_ENDPOINTS", "{}"))
        named = [endpoint.get("key_file") for endpoint in endpoints.values()]
    except (ValueError, AttributeError):
        return []
    return [path for path in named if isinstance(path, str) and os.path.exists(path)]
