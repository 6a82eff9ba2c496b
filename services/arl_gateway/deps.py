"""Objects that the routes of the gateway share, built once for each process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Request

from arl_gateway.actions.explanations import ExplanationService
from arl_gateway.actions.service import ActionService
from arl_gateway.actions.traces import TraceService
from arl_gateway.actions.waiters import ActionWaiters
from arl_gateway.admin.consistency import ConsistencyService
from arl_gateway.admin.keys import KeyAdmin
from arl_gateway.admin.projects import ProjectAdmin
from arl_gateway.admin.queues import QueueAdmin
from arl_gateway.admin.scheduler_reports import CapacityService, StragglerService
from arl_gateway.audit_log.service import AuditLogReader
from arl_gateway.blocking.code_runs import CodeRunner
from arl_gateway.blocking.command_runner import CommandRunner
from arl_gateway.compat.e2b.channels import SandboxChannels
from arl_gateway.compat.e2b.sandboxes import SandboxPorts, SandboxService
from arl_gateway.endpoints.service import EndpointService
from arl_gateway.endpoints.upstream_proxy import UpstreamProxy
from arl_gateway.environments.archives import ArchiveService
from arl_gateway.environments.forks import ForkService
from arl_gateway.environments.network_policies import NetworkPolicies
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.environments.snapshots import SnapshotService
from arl_gateway.http.auth import KeyAuthenticator
from arl_gateway.http.rate_limit import RateLimiter
from arl_gateway.images.service import ImageAdmin
from arl_gateway.nodes.join import NodeJoin
from arl_gateway.nodes.service import NodeAdmin
from arl_gateway.pools.service import PoolAdmin
from arl_gateway.ports.connections import PortConnections
from arl_gateway.ports.forwarding import PortForwarder
from arl_gateway.ports.signed_urls import PortUrlSigner
from arl_gateway.reward_services.score_coalescer import ScoreCoalescer
from arl_gateway.reward_services.service import RewardServiceAdmin
from arl_gateway.reward_services.service_directory import ServiceDirectory
from arl_gateway.settings import GatewaySettings
from arl_gateway.steps.service import StepService
from arl_gateway.streaming.log_streams import NODE_CALL_TIMEOUT_S, LogStreams, StreamLimiter
from arl_kit.app import provided_deps
from arl_kit.failpoints import Failpoints
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_store.tx import PostgresStore
from arl_store.wake import WakeListener

__all__ = ["GatewayDeps", "build_deps", "gateway_deps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDeps:
    """The services behind the routes, and the connections that they use."""

    store: PostgresStore
    peers: ServiceClient
    nodes: ServiceClient
    listener: WakeListener
    waiters: ActionWaiters
    authenticator: KeyAuthenticator
    rate_limiter: RateLimiter
    actions: ActionService
    traces: TraceService
    explanations: ExplanationService
    environments: EnvironmentService
    archives: ArchiveService
    snapshots: SnapshotService
    forks: ForkService
    port_forwarder: PortForwarder
    port_urls: PortUrlSigner
    sandboxes: SandboxService
    reward_services: RewardServiceAdmin
    service_directory: ServiceDirectory
    scores: ScoreCoalescer
    steps: StepService
    endpoints: EndpointService
    upstream_proxy: UpstreamProxy
    code_runner: CodeRunner
    command_runner: CommandRunner
    stream_limiter: StreamLimiter
    log_streams: LogStreams
    key_admin: KeyAdmin
    queue_admin: QueueAdmin
    node_admin: NodeAdmin
    node_join: NodeJoin
    pools: PoolAdmin
    images: ImageAdmin
    project_admin: ProjectAdmin
    capacity: CapacityService
    stragglers: StragglerService
    consistency: ConsistencyService
    audit_log: AuditLogReader

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start connections and waiters. On exit, wait for calls in flight and close everything."""
        for connection in (self.peers, self.nodes, self.listener):
            await connection.start()
        self.waiters.start()
        self.sandboxes.expiry.start()
        yield
        await self.port_forwarder.connections.stop()
        await self.sandboxes.stop()
        for service in (self.scores, self.code_runner, self.upstream_proxy, self.command_runner, self.actions):
            await service.drain()
        await self.waiters.stop()
        for connection in (self.listener, self.nodes, self.peers):
            await connection.stop()
        await self.store.close()

    def drain(self) -> None:
        """End blocking calls and streams early, so that the server can stop."""
        for service in (self.code_runner, self.upstream_proxy, self.command_runner):
            service.stop()
        self.waiters.drain()
        self.log_streams.drain()
        self.sandboxes.channels.drain()
        self.port_forwarder.connections.drain()

    def register_metrics(self, metrics: Metrics) -> None:
        """Add the gauges of requests in flight."""
        gauge = metrics.gauge_function
        gauge("waiting_requests", "Requests that wait for an action to settle", lambda: self.waiters.waiting)
        gauge("pending_score_calls", "Requests that wait for scores", lambda: self.scores.waiting)
        gauge("pending_code_runs", "Requests to /run_code that wait for their result", lambda: self.code_runner.waiting)
        gauge(
            "pending_swerex_commands",
            "SWE-ReX requests that wait for their result",
            lambda: self.command_runner.waiting,
        )
        self.pools.register_metrics(metrics)
        gauge(
            "port_connections",
            "Open connections to ports of environments",
            lambda: self.port_forwarder.connections.active,
        )
        gauge("log_streams", "Open streams of live output", lambda: self.stream_limiter.active)


def build_deps(settings: GatewaySettings, store: PostgresStore) -> GatewayDeps:
    """Build every service of the gateway. Nothing connects before `GatewayDeps.running`."""
    tokens, admission_url = settings.token_issuer("gateway"), settings.admission_url
    peers, failpoints = ServiceClient(tokens), Failpoints(settings.failpoints)
    nodes = ServiceClient(tokens, timeout_s=NODE_CALL_TIMEOUT_S, max_per_service=2 * settings.max_log_streams)
    waiters = ActionWaiters(store, poll_s=settings.wait_poll_s)
    actions = ActionService(store, peers, waiters, admission_url=admission_url, failpoints=failpoints)
    networks = NetworkPolicies(settings.network_max, settings.network_policies)
    environments = EnvironmentService(store, actions, networks, cell=settings.cell)
    archives = ArchiveService(environments, actions, peers, max_bytes=settings.max_archive_mib << 20)
    snapshots = SnapshotService(store, archives, peers, admission_url=admission_url)
    stream_limiter = StreamLimiter(settings.max_log_streams, project_limit=settings.max_log_streams_per_project)
    authenticator = KeyAuthenticator(store, cache_s=settings.key_cache_s)
    log_streams = LogStreams(store, nodes, waiters, stream_limiter)
    forks = ForkService(store, actions, environments, archives, snapshots, cell=settings.cell)
    port_connections = PortConnections(store, nodes, actions, log_streams)
    sandbox_ports = SandboxPorts(port_connections, settings.ports_domain, are_public=settings.e2b_public_ports)
    channels = SandboxChannels(actions, log_streams)
    return GatewayDeps(
        store=store,
        peers=peers,
        nodes=nodes,
        listener=WakeListener(settings.database_url.get_secret_value(), name="gateway", on_wake=waiters.wake),
        waiters=waiters,
        authenticator=authenticator,
        rate_limiter=RateLimiter(quota=settings.rate_limit, window_s=settings.rate_limit_window_s),
        actions=actions,
        traces=TraceService(store),
        explanations=ExplanationService(store, actions, peers, scheduler_url=settings.scheduler_url),
        environments=environments,
        archives=archives,
        snapshots=snapshots,
        forks=forks,
        port_forwarder=PortForwarder(port_connections),
        port_urls=PortUrlSigner(settings.service_token.get_secret_value()),
        sandboxes=SandboxService(store, environments, actions, snapshots, forks, channels, sandbox_ports),
        reward_services=RewardServiceAdmin(store, peers, admission_url=admission_url),
        service_directory=ServiceDirectory(store),
        scores=ScoreCoalescer(
            actions, max_inflight=settings.max_inflight_score_batches, max_waiting=settings.max_pending_scores
        ),
        steps=StepService(store, peers, admission_url=admission_url),
        endpoints=EndpointService(store),
        upstream_proxy=UpstreamProxy(store, actions),
        code_runner=CodeRunner(actions),
        command_runner=CommandRunner(actions),
        stream_limiter=stream_limiter,
        log_streams=log_streams,
        key_admin=KeyAdmin(store, authenticator),
        queue_admin=QueueAdmin(store, peers, admission_url=admission_url),
        node_admin=NodeAdmin(store, peers, admission_url=admission_url),
        node_join=NodeJoin(store),
        pools=PoolAdmin(store),
        images=ImageAdmin(store, peers, admission_url=admission_url),
        project_admin=ProjectAdmin(store, peers, admission_url=admission_url),
        capacity=CapacityService(store, peers, scheduler_url=settings.scheduler_url),
        stragglers=StragglerService(store, peers, scheduler_url=settings.scheduler_url),
        consistency=ConsistencyService(store),
        audit_log=AuditLogReader(store),
    )


def gateway_deps(source: Request | FastAPI) -> GatewayDeps:
    """Return the dependencies of the application that serves this request."""
    return provided_deps(source.app if isinstance(source, Request) else source, GatewayDeps)
