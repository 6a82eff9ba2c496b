"""Connections from this gateway to servers inside environments."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from arl_gateway.actions.service import ActionService
from arl_gateway.http.auth import Caller
from arl_gateway.ports.activity import PortActivity, PortConnection
from arl_gateway.streaming.log_streams import LogStreams
from arl_kit.http_server.takeover import close_connection
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import node_audience
from arl_store.tx import PostgresStore, Row
from arl_wire.errors import TangramError, Unavailable

__all__ = ["PortConnections"]

MAX_CONNECTIONS = 2048
MAX_CONNECTIONS_PER_PROJECT = 1024
MAX_CONNECTIONS_PER_ENVIRONMENT = 128
RETRY_AFTER_S = 1


class PortConnections:
    """The open connections by environment."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, actions: ActionService, streams: LogStreams) -> None:
        self._store, self._peers, self._actions, self._streams = store, peers, actions, streams
        self._activities: dict[UUID, PortActivity] = {}
        self._per_project: Counter[int] = Counter()
        self._per_environment: Counter[UUID] = Counter()
        self._is_draining = False

    @property
    def active(self) -> int:
        """Return the number of open connections."""
        return self._per_project.total()

    @asynccontextmanager
    async def connect(self, environment: Row, port: int, caller: Caller) -> AsyncIterator[PortConnection]:
        """Connect to a server inside a live environment. The environment runs until the block ends.

        Raises TangramError.
        """
        self._check_limits(environment.id, caller)
        self._per_project[caller.project_id] += 1
        self._per_environment[environment.id] += 1
        try:
            url = f"{environment.node_url}/internal/ports/{caller.project_id}/{environment.id}/{port}"
            audience = node_audience(environment.node, environment.node_credential_id)
            connection = PortConnection(*await self._peers.open_tunnel(url, audience=audience))
            activity = self._activity(environment, caller)
            activity.add(connection)
            try:
                yield connection
            finally:
                activity.remove(connection)
                await close_connection(connection.writer, 0)
        finally:
            self._per_project[caller.project_id] -= 1
            self._per_environment[environment.id] -= 1
            if not self._per_environment[environment.id]:
                del self._per_environment[environment.id]

    async def end(self, environment: UUID, error: TangramError) -> None:
        """End the connections of an environment and the action that lets it run because of them."""
        if (activity := self._activities.get(environment)) is not None:
            await activity.stop(error)

    def drain(self) -> None:
        """End all connections, so that the server can stop."""
        self._is_draining = True
        for each in tuple(self._activities.values()):
            each.fail(Unavailable("this gateway is stopping; connect again", retry_after_s=RETRY_AFTER_S))

    async def stop(self) -> None:
        """Wait until the actions of the connections have ended."""
        error = Unavailable("this gateway has stopped", retry_after_s=RETRY_AFTER_S)
        await asyncio.gather(*(each.stop(error) for each in tuple(self._activities.values())))

    def _check_limits(self, environment: UUID, caller: Caller) -> None:
        if self._is_draining:
            raise Unavailable("this gateway is stopping; connect again", retry_after_s=RETRY_AFTER_S)
        for name, used, most in (
            ("this gateway", self.active, MAX_CONNECTIONS),
            ("this project", self._per_project[caller.project_id], MAX_CONNECTIONS_PER_PROJECT),
            (f"environment {environment}", self._per_environment[environment], MAX_CONNECTIONS_PER_ENVIRONMENT),
        ):
            if used >= most:
                message = f"{name} already has {most} connections to ports, its maximum; try again"
                raise Unavailable(message, retry_after_s=RETRY_AFTER_S)

    def _activity(self, environment: Row, caller: Caller) -> PortActivity:
        found = self._activities.get(environment.id)
        if found is None:
            found = self._activities[environment.id] = PortActivity(
                environment,
                caller,
                store=self._store,
                actions=self._actions,
                streams=self._streams,
                on_end=self._forget,
            )
        return found

    def _forget(self, activity: PortActivity) -> None:
        if self._activities.get(activity.environment.id) is activity:
            del self._activities[activity.environment.id]
