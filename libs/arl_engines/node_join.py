"""The command of a node that joins with a token of the system in a state directory of this machine."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import sqlalchemy.exc

from arl_engines.engine import ClusterEngineError, NodeCommand, NodeRequest
from arl_local.join.create import NotServing, create_join_token
from arl_local.join.credentials import JoinedNode
from arl_local.state_dir import StateDir

__all__ = ["JoinedNodeCommands"]

TOKEN_VARIABLE = "TANGRAM_JOIN_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_TTL_S = 3600.0
"""Seconds in which the node must start."""
OWN_VARIABLES = frozenset(
    {
        *("TANGRAM_DIR", "TANGRAM_URL", "TANGRAM_API_KEY", "TANGRAM_DATABASE_URL", TOKEN_VARIABLE),
        *("TANGRAM_NODE_NAME", "TANGRAM_HOST", "TANGRAM_PORT", "TANGRAM_ADVERTISE_URL", "TANGRAM_CPU_CORES"),
    }
)
"""Variables of the controller's environment that nodes do not inherit: its credentials, and settings of one node."""


class JoinedNodeCommands:
    """Commands of nodes that join once and then start with their own credentials."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
        token_ttl_s: float = TOKEN_TTL_S,
    ) -> None:
        """Create tokens of the system whose state directory is `directory`.

        Args:
            directory: State directory of the system.
            environment: Variables of the nodes. None: those of this process.
            python: Interpreter, on the machine of a node, of an environment with the server packages.
            token_ttl_s: Seconds in which the node must start and use its token.
        """
        self._state = StateDir(directory)
        self._python = python
        self._token_ttl_s = token_ttl_s
        self._environment = dict(os.environ if environment is None else environment)

    async def command_for(self, request: NodeRequest) -> NodeCommand:
        """Return the command of a node. It has a token unless the node joined earlier. Raises `ClusterEngineError`."""
        pool = request.pool
        argv = [self._python, "-P", "-m", "arl_local.join", "--dir", str(request.directory)]
        env = {name: value for name, value in self._environment.items() if name not in OWN_VARIABLES}
        if JoinedNode.load(request.directory) is None:
            url, env[TOKEN_VARIABLE] = await self._new_token(request)
            argv += ["--join", url]
        argv += ["--driver", pool.driver] if pool.driver is not None and pool.kind == "cpu" else []
        argv += ["--cores", str(pool.cores)] if pool.cores is not None and pool.kind == "cpu" else []
        return NodeCommand(argv=tuple(argv), env=env)

    async def _new_token(self, request: NodeRequest) -> tuple[str, str]:
        """Return the gateway's address and a token. Earlier tokens for the name become invalid."""
        try:
            created = await create_join_token(
                self._state,
                kind=request.pool.kind,
                name=request.name,
                pool=request.pool.name,
                ttl_s=self._token_ttl_s,
                database_url=self._environment.get("TANGRAM_DATABASE_URL"),
            )
        except (ValueError, NotServing, OSError, asyncpg.PostgresError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise ClusterEngineError(f"{request.name} gets no join token: {error}") from None
        return created.url, created.token
