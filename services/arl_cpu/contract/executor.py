"""What a CPU manager asks of whatever runs its actions.

`LauncherClient` (real sandboxes, behind the launcher process) and `SimulatedExecutor` (a benchmark
instrument) answer this protocol; one conformance suite holds both to it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from uuid import UUID

from arl_core.domain.fence import Fence

__all__ = [
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
    "FileOperation",
    "FileOperationError",
    "NodeCapability",
    "RunningAttempt",
]

MAX_CHUNK_BYTES = 64 << 10
"""Of a stream in one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The environment an attempt runs in. It is made at its first use, with these limits."""

    id: UUID
    scope: Literal["ephemeral", "trajectory"]
    template: str | None
    """What it begins with. None: what it began with, else `host`."""
    memory_mib: int
    disk_mib: int
    pids: int
    may_make: bool = True
    """False where it was used before: one that is not there any more is lost, and not made anew, empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """One attempt. At most one of `argv`, `source` and `session` is set; without them only files are moved.

    Then `env` is what every later attempt in the environment gets, too.
    """

    fence: Fence
    environment: EnvironmentSpec
    argv: tuple[str, ...] | None
    source: str | None
    env: Mapping[str, str]
    cwd: str | None
    stdin: bytes
    files: Mapping[str, bytes]
    fetch: tuple[str, ...]
    timeout_s: float
    cpu_milli: int
    cores: tuple[int, ...]
    """Cores the attempt may use: its own for whole-core amounts, shared ones for a fraction."""
    max_cpu_milli: int = 0
    """The most that a resize may bring; thread pools are sized for it at the start."""
    resize_seq: int = 0
    stdin_open: bool = False
    """After `stdin` comes what `feed` brings."""
    session: str | None = None
    """The name of a shell that stays open in the environment; it runs `command`, with stdout for all it shows."""
    command: str | None = None
    output_keep_bytes: int = 1 << 20
    output_kill_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResize:
    """Other cores for a running attempt. One of a lower or equal `amounts_seq` is an older copy and changes nothing."""

    fence: Fence
    cpu_milli: int
    cores: tuple[int, ...]
    amounts_seq: int


@dataclass(frozen=True, slots=True)
class CapturedChunk:
    """Some of what a stream has beyond an offset.

    An offset past the kept bytes says that whoever asks knows that the rest is only counted.
    """

    data: bytes
    retained_bytes: int
    total_bytes: int
    has_new_output: bool

    @classmethod
    def from_buffer(cls, retained: bytes | bytearray, total_bytes: int, offset: int) -> "CapturedChunk":
        data = bytes(retained[offset : offset + MAX_CHUNK_BYTES])
        return cls(data, len(retained), total_bytes, bool(data) or offset == len(retained) < total_bytes)


@dataclass(frozen=True, slots=True)
class CapturedStream:
    """The first bytes of a stream and how many there were in all."""

    data: bytes
    total_bytes: int

    @property
    def is_truncated(self) -> bool:
        return self.total_bytes > len(self.data)

    def chunk_from(self, offset: int) -> CapturedChunk:
        return CapturedChunk.from_buffer(self.data, self.total_bytes, offset)


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """What an attempt has written beyond two offsets."""

    stdout: CapturedChunk
    stderr: CapturedChunk
    ended: bool


@dataclass(frozen=True, slots=True)
class FeedResult:
    """What became of input. `full`: the program has to read some first. `gap`: bytes before these are missing."""

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Bytes taken so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """How one attempt ended. `reason` names the limit of a `limit_exceeded` and the cause of an `infra_error`."""

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
    cpu_us: int = 0
    peak_memory_kib: int = 0
    left_behind: int = 0
    """Processes of the attempt still in a persistent environment, frozen."""
    environment_lost: bool = False
    enforcement: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """Bytes in the statement that settles it; files travel in base64."""
        files = sum(len(content) for content in self.files.values())
        return len(self.stdout.data) + len(self.stderr.data) + files * 4 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLostEvent:
    """A persistent environment that ended without being asked to."""

    id: UUID
    lost_reason: str


ExecutorEvent = ExecutionReport | EnvironmentLostEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapability:
    """One kind of wall on this node, found by trying it."""

    name: str
    level: Literal["enforced", "best_effort", "absent"]
    mechanism: str
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that still runs, where, and with what."""

    fence: Fence
    environment: UUID
    cores: tuple[int, ...]
    cpu_milli: int
    amounts_seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorState:
    """What a (re)connecting manager finds: the truth about what this node holds."""

    node_epoch: UUID
    environments: tuple[UUID, ...]
    running: tuple["RunningAttempt", ...]
    reports: tuple[ExecutionReport, ...]
    """Attempts that ended and whose report nobody acknowledged yet."""
    capabilities: tuple[NodeCapability, ...]
    driver: str


class FileOperationError(Exception):
    """A file operation that failed. The code is one of `arl_cpu.launcher.files.file_tree`, or `lost`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FileOperation(Protocol):
    """A piece of work on an environment's files, as it goes on. Anything raises ConnectionError when it is gone."""

    async def read_response(self) -> Mapping[str, Any]:
        """What it says next. Raises WorkRefused."""

    async def send(self, data: bytes) -> None:
        """More of what goes in; nothing is the end of it."""

    def output(self) -> AsyncIterator[bytes]:
        """What comes out, to its end. Raises WorkRefused."""
        ...

    async def close(self) -> None:
        """Returns once nothing is at work any more, whether it was finished or not."""


class Executor(Protocol):
    """Runs attempts. Everything is idempotent by fence: a second start or kill of a fence is nothing."""

    async def connect(self) -> ExecutorState: ...

    async def start(self, specs: Sequence[ExecSpec]) -> None:
        """Hand attempts over. Each ends in exactly one `Report`, a failed set-up too."""

    async def resize(self, resizes: Sequence[AttemptResize]) -> frozenset[Fence]:
        """Give running attempts other cores, without a restart. Returns once they hold.

        The fences that come back have what their highest `amounts_seq` said. One that doesn't has ended or is being
        ended, or it could not be changed; then it has what it had.
        """

    async def start_file_operation(self, fence: Fence, environment: UUID, request: Mapping[str, Any]) -> FileOperation:
        """Begin work on the files of a persistent environment. No attempt may run in it until that is closed."""
        ...

    async def kill(self, fences: Sequence[Fence]) -> None:
        """End running attempts; each still reports, as `cancelled` unless it had ended by then."""

    async def poll_output(self, fence: Fence, *, stdout: int, stderr: int) -> CapturedOutput | None:
        """What it has written beyond these offsets, as soon as there is any, or its end. None where it does not run.

        Nothing is kept for who does not ask; who wants more asks again. To be cancelled at any time.
        """

    async def feed_stdin(self, fence: Fence, data: bytes, *, offset: int | None, end: bool) -> FeedResult:
        """Give it input, all or nothing. With an offset, what it was given before is not given again."""
        ...

    async def destroy(self, environments: Sequence[UUID]) -> None:
        """End environments and everything in them. Returns once nothing of them is alive."""

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """The reports of these fences are durable elsewhere; forget them."""

    def events(self) -> AsyncIterator[ExecutorEvent]:
        """Reports and losses as they happen. Ends with `ConnectionError` when the executor is gone."""
        ...

    async def close(self) -> None: ...
