"""The interface between a CPU manager and the executor that runs its actions.

`LauncherClient` (real sandboxes in the launcher process) and `SimulatedExecutor` (for benchmarks) implement this
protocol. One conformance suite tests both.
"""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from arl_core.domain.model import CpuSharing, Fence
from arl_cpu.contract.environment_access import FileOperation

__all__ = [
    "CAPABILITY_NAMES",
    "AttemptResize",
    "CapturedChunk",
    "CapturedOutput",
    "CapturedStream",
    "EnvironmentLostEvent",
    "EnvironmentSpec",
    "ExecSpec",
    "ExecutionReport",
    "Executor",
    "ExecutorEvent",
    "ExecutorState",
    "FeedResult",
    "NetworkVersion",
    "NodeCapability",
    "RunningAttempt",
    "TimeoutReason",
    "UnusedCoresEvent",
    "first_limit",
]

CAPABILITY_NAMES = (
    "uid_separation",
    "files",
    "net_isolation",
    "seccomp",
    "kill_tree",
    "cpu_quota",
    "cpuset",
    "cpu_weight",
    "memory",
    "pids",
    "freeze",
    "disk_total",
    "oom_events",
)
"""Isolation features that a node reports, each as `enforced`, `best_effort` or `absent`."""

TimeoutReason = Literal["timeout_s", "wall_timeout_s"]

MAX_CHUNK_BYTES = 64 << 10
"""Largest part of one stream in one response, in bytes."""


@dataclass(frozen=True, slots=True)
class NetworkVersion:
    """A network of an environment, as JSON, and the number of changes that led to it."""

    version: int
    network: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The environment that an attempt runs in. Its first use creates it with these limits."""

    id: UUID
    scope: Literal["ephemeral", "trajectory"]
    template: str | None
    """Template that it starts from. None means the template of the existing environment, or `host` for a new one."""
    memory_mib: int
    disk_mib: int
    pids: int
    network: Any = None
    """Network between and in attempts, as `NetworkPolicy.to_json` returns it. None: no network."""
    network_version: int = 0
    """Number of changes of the network so far."""
    may_make: bool = True
    """False if the environment was used before.

    If it no longer exists, the attempt reports it as lost instead of creating an empty one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """The specification of one attempt. At most one of `argv`, `source` and `session` is set.

    Without any of them the attempt only moves files, and `env` also applies to every later attempt in the environment.
    """

    fence: Fence
    environment: EnvironmentSpec
    argv: tuple[str, ...] | None
    source: str | None
    env: Mapping[str, str]
    cwd: str | None
    user: str | None = field(default=None, kw_only=True)
    """User of the program as `USER` or `USER:GROUP`, names or numbers. None: the default of the environment."""
    network: Any = field(default=None, kw_only=True)
    """Network of this attempt only, as `NetworkPolicy.to_json` returns it. None: the network of the environment."""
    stdin: bytes
    files: Mapping[str, bytes]
    fetch: tuple[str, ...]
    timeout_s: float
    """Limit of the counted time: run time, or the time of `arl_core.control.counted_time` with shared cores."""
    cpu_milli: int
    """Milli-cores of the allocation. They limit the use of cores unless the attempt shares cores."""
    cores: tuple[int, ...]
    """Cores the attempt may use. If it shares cores, the executor replaces them as `set_shared_cores` says."""
    wall_timeout_s: float | None = None
    """Limit of the real time in seconds."""
    sharing: CpuSharing | None = None
    """Sharing of cores; None for exclusive cores and fractions with a quota."""
    expected_cpu_s: float = 1.0
    """CPU-seconds that the attempt is expected to use; only for shared cores."""
    is_critical: bool = False
    """True if the trajectory is expected to end its step last; only for shared cores."""
    max_cpu_milli: int = 0
    """Largest `cpu_milli` that a resize may grant. Thread pools are sized for it at the start."""
    resize_seq: int = 0
    stdin_open: bool = False
    """True if `feed_stdin` may add input after `stdin`."""
    session: str | None = None
    """Name of a shell that stays open in the environment. It runs `command`; stdout carries all its output."""
    command: str | None = None
    output_keep_bytes: int = 1 << 20
    output_kill_bytes: int = 64 << 20


def first_limit(spec: ExecSpec) -> tuple[float, TimeoutReason]:
    """Return the shorter time limit and its name. Both are real time if the attempt does not share cores."""
    wall_s = spec.wall_timeout_s
    return (
        (wall_s, "wall_timeout_s") if wall_s is not None and wall_s < spec.timeout_s else (spec.timeout_s, "timeout_s")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResize:
    """New cores for a running attempt.

    A resize whose `amounts_seq` is not higher than the last one is stale and ignored.
    """

    fence: Fence
    cpu_milli: int
    cores: tuple[int, ...]
    amounts_seq: int


@dataclass(frozen=True, slots=True)
class CapturedChunk:
    """The part of a stream from an offset on.

    An offset beyond the retained bytes means that the reader knows that later bytes are only counted.
    """

    data: bytes
    retained_bytes: int
    total_bytes: int
    has_new_output: bool

    @classmethod
    def from_buffer(cls, retained: bytes | bytearray, total_bytes: int, offset: int) -> "CapturedChunk":
        """Return up to `MAX_CHUNK_BYTES` retained bytes from the offset on."""
        data = bytes(retained[offset : offset + MAX_CHUNK_BYTES])
        return cls(data, len(retained), total_bytes, bool(data) or offset == len(retained) < total_bytes)


@dataclass(frozen=True, slots=True)
class CapturedStream:
    """The first bytes of a stream and its total length."""

    data: bytes
    total_bytes: int

    @property
    def is_truncated(self) -> bool:
        """Return True if bytes were written that are not retained."""
        return self.total_bytes > len(self.data)

    def chunk_from(self, offset: int) -> CapturedChunk:
        """Return the part of the stream from the offset on."""
        return CapturedChunk.from_buffer(self.data, self.total_bytes, offset)


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of an attempt beyond two offsets."""

    stdout: CapturedChunk
    stderr: CapturedChunk
    ended: bool


@dataclass(frozen=True, slots=True)
class FeedResult:
    """The result of feeding input. `full`: the program must read first. `gap`: bytes before `offset` are missing."""

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Bytes accepted so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """The outcome of one attempt.

    `reason` names the limit of a `limit_exceeded` or `user_timeout`, and the cause of an `infra_error`.
    """

    fence: Fence
    outcome: Literal["ok", "user_error", "user_timeout", "limit_exceeded", "infra_error", "cancelled"]
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout: CapturedStream = CapturedStream(b"", 0)
    stderr: CapturedStream = CapturedStream(b"", 0)
    files: Mapping[str, bytes] = field(default_factory=dict)
    missing_files: tuple[str, ...] = ()
    run_us: int = 0
    """Monotonic time from the start of execution to its confirmed end, after the sweep or the freeze."""
    counted_us: int | None = None
    """Time that counts for `timeout_s`. Without shared cores it equals `run_us`. None if nothing ran."""
    cpu_us: int = 0
    peak_memory_kib: int = 0
    leftover_processes: int = 0
    """Number of the attempt's processes that remain in a persistent environment, frozen."""
    environment_lost: bool = False
    enforcement: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    """Use of the network in the form of `NetworkUsage`. None if the attempt had no network."""

    @property
    def weight(self) -> int:
        """Bytes that this report adds to the settling statement. Files are encoded in base64."""
        files = sum(len(content) for content in self.files.values())
        return len(self.stdout.data) + len(self.stderr.data) + files * 4 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLostEvent:
    """The unrequested end of a persistent environment."""

    id: UUID
    lost_reason: str


@dataclass(frozen=True, slots=True)
class UnusedCoresEvent:
    """A change of the milli-cores that are allocated to attempts with shared cores and that they do not use."""

    cpu_milli: int


ExecutorEvent = ExecutionReport | EnvironmentLostEvent | UnusedCoresEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapability:
    """A kind of isolation on this node and its level, as determined by a self-test."""

    name: str
    level: Literal["enforced", "best_effort", "absent"]
    mechanism: str
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """A running attempt with its environment and cores."""

    fence: Fence
    environment: UUID
    cores: tuple[int, ...]
    cpu_milli: int
    amounts_seq: int = 0
    sharing: CpuSharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorState:
    """The executor's state at (re)connection. It is authoritative for this node's attempts and environments."""

    node_epoch: UUID
    environments: tuple[UUID, ...]
    running: tuple["RunningAttempt", ...]
    reports: tuple[ExecutionReport, ...]
    """Reports of ended attempts that have not been acknowledged."""
    capabilities: tuple[NodeCapability, ...]
    driver: str


class Executor(Protocol):
    """An executor of attempts. Every call is idempotent by fence: a second start or kill of a fence does nothing."""

    async def connect(self) -> ExecutorState:
        """Connect and return the executor's state. Earlier connections of this node end."""

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        """Start attempts. Each ends in exactly one `ExecutionReport`, also if its set-up fails."""

    async def resize(self, resizes: Sequence[AttemptResize]) -> frozenset[Fence]:
        """Resize running attempts without a restart. Returns once the new cores apply.

        The returned fences have the cores of their highest `amounts_seq`. A fence that is missing has ended, is being
        ended, or could not be changed and has its former cores.
        """

    async def set_shared_cores(self, cores: Sequence[int]) -> None:
        """Set the cores of all attempts with shared cores, running ones and those that start later.

        A later `start` or `resize` that gives a core to another attempt takes effect after this call.
        """

    async def set_networks(self, networks: Mapping[UUID, NetworkVersion]) -> None:
        """Set the networks of persistent environments. Unknown environments and earlier versions are ignored.

        An attempt with its own network keeps it to its end. Connections that the new network refuses are closed.
        """

    async def set_critical(self, changes: Mapping[Fence, bool]) -> None:
        """Set whether running attempts belong to critical trajectories. Those that do not run are ignored."""

    async def start_file_operation(self, fence: Fence, environment: UUID, request: Mapping[str, Any]) -> FileOperation:
        """Start an operation on the files of a persistent environment.

        No attempt may run in it until the operation is closed.
        """
        ...

    async def create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket:
        """Return a TCP socket, not connected, in the network namespace of a persistent environment.

        Raises EnvironmentSocketError.
        """
        ...

    async def kill(self, fences: Sequence[Fence]) -> None:
        """Kill running attempts. Each still reports, as `cancelled` unless it had already ended."""

    async def poll_output(self, fence: Fence, *, stdout: int, stderr: int) -> CapturedOutput | None:
        """Wait for output beyond these offsets or for the end of the attempt. Return None if it does not run.

        The caller repeats the call for more output; nothing is buffered for a reader. The call may be cancelled at any
        time.
        """

    async def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Append all of `data` to the standard input, or nothing.

        With an offset, bytes that were accepted before are skipped.
        """
        ...

    async def destroy(self, environments: Sequence[UUID]) -> None:
        """Destroy environments and everything in them. Returns after all their processes have ended."""

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Delete the reports of these fences, which are durable elsewhere."""

    def events(self) -> AsyncIterator[ExecutorEvent]:
        """Yield reports and environment losses as they occur. Raises ConnectionError when the executor ends."""
        ...

    async def close(self) -> None:
        """Close the connection; attempts continue."""
