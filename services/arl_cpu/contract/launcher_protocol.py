"""Messages on the launcher's socket: frames of a 4-byte length and JSON, bytes as base64."""

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from arl_core.domain.model import CpuSharing, Fence
from arl_cpu.contract.executor import (
    AttemptResize,
    CapturedChunk,
    CapturedOutput,
    CapturedStream,
    EnvironmentSpec,
    ExecSpec,
    ExecutionReport,
    ExecutorState,
    FeedResult,
    NodeCapability,
    RunningAttempt,
)

__all__ = [
    "MAX_FRAME",
    "FrameReader",
    "decode_capability",
    "decode_feed",
    "decode_feed_result",
    "decode_fence",
    "decode_output",
    "decode_report",
    "decode_resize",
    "decode_spec",
    "decode_state",
    "encode_feed",
    "encode_feed_result",
    "encode_fence",
    "encode_frame",
    "encode_output",
    "encode_report",
    "encode_resize",
    "encode_spec",
    "encode_state",
]

MAX_FRAME = 256 << 20
_LENGTH = struct.Struct(">I")

JsonObject = dict[str, Any]


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """Return a message as a frame."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """A decoder that splits a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[JsonObject]:
        """Add received data and yield the complete messages. Raises `ValueError` for an invalid frame."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise ValueError(f"a frame has {size} bytes, but at most {MAX_FRAME} are allowed")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield json.loads(body.decode(errors="surrogatepass"))


def encode_fence(fence: Fence) -> list[Any]:
    return [str(fence.action_id), fence.grant_no]


def decode_fence(data: list[Any]) -> Fence:
    return Fence(UUID(data[0]), data[1])


def encode_spec(spec: ExecSpec) -> JsonObject:
    environment = spec.environment
    return {
        "fence": encode_fence(spec.fence),
        "environment": {
            "id": str(environment.id),
            "scope": environment.scope,
            "template": environment.template,
            "memory_mib": environment.memory_mib,
            "disk_mib": environment.disk_mib,
            "pids": environment.pids,
            "network": environment.network,
            "network_version": environment.network_version,
            "may_make": environment.may_make,
        },
        "argv": spec.argv,
        "source": spec.source,
        "env": dict(spec.env),
        "cwd": spec.cwd,
        "user": spec.user,
        "network": spec.network,
        "stdin": _encode_bytes(spec.stdin),
        "stdin_open": spec.stdin_open,
        "session": spec.session,
        "command": spec.command,
        "files": {path: _encode_bytes(content) for path, content in spec.files.items()},
        "fetch": spec.fetch,
        "timeout_s": spec.timeout_s,
        "wall_timeout_s": spec.wall_timeout_s,
        "sharing": _encode_sharing(spec.sharing),
        "expected_cpu_s": spec.expected_cpu_s,
        "is_critical": spec.is_critical,
        "cpu_milli": spec.cpu_milli,
        "cores": spec.cores,
        "widest_cpu_milli": spec.max_cpu_milli,
        "amounts_seq": spec.resize_seq,
        "output_keep_bytes": spec.output_keep_bytes,
        "output_kill_bytes": spec.output_kill_bytes,
    }


def decode_spec(data: JsonObject) -> ExecSpec:
    environment = data["environment"]
    return ExecSpec(
        fence=decode_fence(data["fence"]),
        environment=EnvironmentSpec(**{**environment, "id": UUID(environment["id"])}),
        argv=tuple(data["argv"]) if data["argv"] is not None else None,
        source=data["source"],
        env=data["env"],
        cwd=data["cwd"],
        user=data["user"],
        network=data["network"],
        stdin=_decode_bytes(data["stdin"]),
        stdin_open=data["stdin_open"],
        session=data["session"],
        command=data["command"],
        files={path: _decode_bytes(content) for path, content in data["files"].items()},
        fetch=tuple(data["fetch"]),
        timeout_s=data["timeout_s"],
        wall_timeout_s=data["wall_timeout_s"],
        sharing=_decode_sharing(data["sharing"]),
        expected_cpu_s=data["expected_cpu_s"],
        is_critical=data["is_critical"],
        cpu_milli=data["cpu_milli"],
        cores=tuple(data["cores"]),
        max_cpu_milli=data["widest_cpu_milli"],
        resize_seq=data["amounts_seq"],
        output_keep_bytes=data["output_keep_bytes"],
        output_kill_bytes=data["output_kill_bytes"],
    )


def encode_resize(resize: AttemptResize) -> JsonObject:
    return {
        "fence": encode_fence(resize.fence),
        "cpu_milli": resize.cpu_milli,
        "cores": resize.cores,
        "amounts_seq": resize.amounts_seq,
    }


def decode_resize(data: JsonObject) -> AttemptResize:
    return AttemptResize(**{**data, "fence": decode_fence(data["fence"]), "cores": tuple(data["cores"])})


def encode_output(output: CapturedOutput | None) -> JsonObject | None:
    if output is None:
        return None
    streams = {"stdout": _encode_chunk(output.stdout), "stderr": _encode_chunk(output.stderr)}
    return {**streams, "ended": output.ended}


def decode_output(data: JsonObject | None) -> CapturedOutput | None:
    if data is None:
        return None
    return CapturedOutput(_decode_chunk(data["stdout"]), _decode_chunk(data["stderr"]), data["ended"])


def _encode_chunk(chunk: CapturedChunk) -> list[Any]:
    return [_encode_bytes(chunk.data), chunk.retained_bytes, chunk.total_bytes, chunk.has_new_output]


def _decode_chunk(data: list[Any]) -> CapturedChunk:
    return CapturedChunk(_decode_bytes(data[0]), *data[1:])


def encode_feed(fence: Fence, data: bytes, *, offset: int | None, end: bool) -> JsonObject:
    return {"fence": encode_fence(fence), "data": _encode_bytes(data), "offset": offset, "end": end}


def decode_feed(data: Mapping[str, Any]) -> JsonObject:
    """Return the arguments of `LauncherNode.feed_stdin`."""
    given = {name: data[name] for name in ("offset", "end")}
    return {"fence": decode_fence(data["fence"]), "data": _decode_bytes(data["data"]), **given}


def encode_feed_result(result: FeedResult) -> list[Any]:
    return [result.status, result.offset]


def decode_feed_result(data: list[Any]) -> FeedResult:
    return FeedResult(*data)


_PLAIN_REPORT_FIELDS = (
    "outcome",
    "reason",
    "message",
    "exit_code",
    "signal",
    "run_us",
    "counted_us",
    "cpu_us",
    "peak_memory_kib",
    "leftover_processes",
    "environment_lost",
    "network",
)


def encode_report(report: ExecutionReport) -> JsonObject:
    return {
        **{name: getattr(report, name) for name in _PLAIN_REPORT_FIELDS},
        "fence": encode_fence(report.fence),
        "stdout": [_encode_bytes(report.stdout.data), report.stdout.total_bytes],
        "stderr": [_encode_bytes(report.stderr.data), report.stderr.total_bytes],
        "files": {path: _encode_bytes(content) for path, content in report.files.items()},
        "missing_files": report.missing_files,
        "enforcement": dict(report.enforcement),
    }


def decode_report(data: JsonObject) -> ExecutionReport:
    return ExecutionReport(
        # A report that an earlier version spooled may lack later fields.
        **{name: data[name] for name in _PLAIN_REPORT_FIELDS if name in data},
        fence=decode_fence(data["fence"]),
        stdout=CapturedStream(_decode_bytes(data["stdout"][0]), data["stdout"][1]),
        stderr=CapturedStream(_decode_bytes(data["stderr"][0]), data["stderr"][1]),
        files={path: _decode_bytes(content) for path, content in data["files"].items()},
        missing_files=tuple(data["missing_files"]),
        enforcement=data["enforcement"],
    )


def decode_capability(data: JsonObject) -> NodeCapability:
    return NodeCapability(**data)


def encode_state(state: ExecutorState) -> JsonObject:
    return {
        "node_epoch": str(state.node_epoch),
        "environments": [str(identifier) for identifier in state.environments],
        "running": [_encode_running(each) for each in state.running],
        "capabilities": [_encode_capability(capability) for capability in state.capabilities],
        "driver": state.driver,
    }


def decode_state(data: JsonObject, reports: Iterable[JsonObject]) -> ExecutorState:
    """Decode the state. Reports come in separate frames before it, because all of them may exceed one frame."""
    return ExecutorState(
        node_epoch=UUID(data["node_epoch"]),
        environments=tuple(UUID(identifier) for identifier in data["environments"]),
        running=tuple(_decode_running(each) for each in data["running"]),
        reports=tuple(decode_report(report) for report in reports),
        capabilities=tuple(decode_capability(capability) for capability in data["capabilities"]),
        driver=data["driver"],
    )


def _encode_running(running: RunningAttempt) -> JsonObject:
    return {
        "fence": encode_fence(running.fence),
        "environment": str(running.environment),
        "cores": running.cores,
        "cpu_milli": running.cpu_milli,
        "amounts_seq": running.amounts_seq,
        "sharing": _encode_sharing(running.sharing),
    }


def _decode_running(data: JsonObject) -> RunningAttempt:
    known = {"fence": decode_fence(data["fence"]), "environment": UUID(data["environment"])}
    sharing = _decode_sharing(data["sharing"])
    return RunningAttempt(**{**data, **known, "cores": tuple(data["cores"]), "sharing": sharing})


def _encode_sharing(sharing: CpuSharing | None) -> JsonObject | None:
    return asdict(sharing) if sharing is not None else None


def _decode_sharing(data: JsonObject | None) -> CpuSharing | None:
    return CpuSharing(**data) if data is not None else None


def _encode_capability(capability: NodeCapability) -> JsonObject:
    return {name: getattr(capability, name) for name in ("name", "level", "mechanism", "reason", "fix")}


def _encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode_bytes(text: str) -> bytes:
    return base64.b64decode(text)
