"""What crosses the launcher's socket: frames of a 4-byte length and JSON, bytes as base64."""

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from arl_core.fence import Fence
from arl_cpu.executor import (
    Capability,
    EnvironmentSpec,
    ExecSpec,
    ExecutorState,
    Fed,
    Output,
    Portion,
    Report,
    Resize,
    RunningAttempt,
    Stream,
)

__all__ = [
    "MAX_FRAME",
    "FrameReader",
    "capability_from",
    "encode_frame",
    "fed_from",
    "fed_to",
    "feed_from",
    "feed_to",
    "fence_from",
    "fence_to",
    "output_from",
    "output_to",
    "report_from",
    "report_to",
    "resize_from",
    "resize_to",
    "spec_from",
    "spec_to",
    "state_from",
    "state_to",
]

MAX_FRAME = 256 << 20
_LENGTH = struct.Struct(">I")

Json = dict[str, Any]


def encode_frame(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Json]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size} bytes is above the limit of {MAX_FRAME}")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield json.loads(body.decode(errors="surrogatepass"))


def fence_to(fence: Fence) -> list[Any]:
    return [str(fence.action_id), fence.grant_no]


def fence_from(data: list[Any]) -> Fence:
    return Fence(UUID(data[0]), data[1])


def spec_to(spec: ExecSpec) -> Json:
    environment = spec.environment
    return {
        "fence": fence_to(spec.fence),
        "environment": {
            "id": str(environment.id),
            "scope": environment.scope,
            "template": environment.template,
            "memory_mib": environment.memory_mib,
            "disk_mib": environment.disk_mib,
            "pids": environment.pids,
            "may_make": environment.may_make,
        },
        "argv": spec.argv,
        "source": spec.source,
        "env": dict(spec.env),
        "cwd": spec.cwd,
        "stdin": _text(spec.stdin),
        "stdin_open": spec.stdin_open,
        "session": spec.session,
        "command": spec.command,
        "files": {path: _text(content) for path, content in spec.files.items()},
        "fetch": spec.fetch,
        "timeout_s": spec.timeout_s,
        "cpu_milli": spec.cpu_milli,
        "cores": spec.cores,
        "widest_cpu_milli": spec.widest_cpu_milli,
        "amounts_seq": spec.amounts_seq,
        "output_keep_bytes": spec.output_keep_bytes,
        "output_kill_bytes": spec.output_kill_bytes,
    }


def spec_from(data: Json) -> ExecSpec:
    environment = data["environment"]
    return ExecSpec(
        fence=fence_from(data["fence"]),
        environment=EnvironmentSpec(**{**environment, "id": UUID(environment["id"])}),
        argv=tuple(data["argv"]) if data["argv"] is not None else None,
        source=data["source"],
        env=data["env"],
        cwd=data["cwd"],
        stdin=_bytes(data["stdin"]),
        stdin_open=data["stdin_open"],
        session=data["session"],
        command=data["command"],
        files={path: _bytes(content) for path, content in data["files"].items()},
        fetch=tuple(data["fetch"]),
        timeout_s=data["timeout_s"],
        cpu_milli=data["cpu_milli"],
        cores=tuple(data["cores"]),
        widest_cpu_milli=data["widest_cpu_milli"],
        amounts_seq=data["amounts_seq"],
        output_keep_bytes=data["output_keep_bytes"],
        output_kill_bytes=data["output_kill_bytes"],
    )


def resize_to(resize: Resize) -> Json:
    return {
        "fence": fence_to(resize.fence),
        "cpu_milli": resize.cpu_milli,
        "cores": resize.cores,
        "amounts_seq": resize.amounts_seq,
    }


def resize_from(data: Json) -> Resize:
    return Resize(**{**data, "fence": fence_from(data["fence"]), "cores": tuple(data["cores"])})


def output_to(output: Output | None) -> Json | None:
    if output is None:
        return None
    streams = {"stdout": _portion_to(output.stdout), "stderr": _portion_to(output.stderr)}
    return {**streams, "ended": output.ended}


def output_from(data: Json | None) -> Output | None:
    if data is None:
        return None
    return Output(_portion_from(data["stdout"]), _portion_from(data["stderr"]), data["ended"])


def _portion_to(portion: Portion) -> list[Any]:
    return [_text(portion.data), portion.kept_bytes, portion.total_bytes, portion.is_news]


def _portion_from(data: list[Any]) -> Portion:
    return Portion(_bytes(data[0]), *data[1:])


def feed_to(fence: Fence, data: bytes, *, offset: int | None, end: bool) -> Json:
    return {"fence": fence_to(fence), "data": _text(data), "offset": offset, "end": end}


def feed_from(data: Mapping[str, Any]) -> Json:
    """The arguments of `Node.feed`."""
    given = {name: data[name] for name in ("offset", "end")}
    return {"fence": fence_from(data["fence"]), "data": _bytes(data["data"]), **given}


def fed_to(fed: Fed) -> list[Any]:
    return [fed.status, fed.offset]


def fed_from(data: list[Any]) -> Fed:
    return Fed(*data)


_PLAIN_REPORT_FIELDS = (
    "outcome",
    "reason",
    "message",
    "exit_code",
    "signal",
    "run_us",
    "cpu_us",
    "peak_memory_kib",
    "left_behind",
    "environment_lost",
)


def report_to(report: Report) -> Json:
    return {
        **{name: getattr(report, name) for name in _PLAIN_REPORT_FIELDS},
        "fence": fence_to(report.fence),
        "stdout": [_text(report.stdout.kept), report.stdout.total_bytes],
        "stderr": [_text(report.stderr.kept), report.stderr.total_bytes],
        "files": {path: _text(content) for path, content in report.files.items()},
        "missing_files": report.missing_files,
        "enforcement": dict(report.enforcement),
    }


def report_from(data: Json) -> Report:
    return Report(
        **{name: data[name] for name in _PLAIN_REPORT_FIELDS},
        fence=fence_from(data["fence"]),
        stdout=Stream(_bytes(data["stdout"][0]), data["stdout"][1]),
        stderr=Stream(_bytes(data["stderr"][0]), data["stderr"][1]),
        files={path: _bytes(content) for path, content in data["files"].items()},
        missing_files=tuple(data["missing_files"]),
        enforcement=data["enforcement"],
    )


def capability_from(data: Json) -> Capability:
    return Capability(**data)


def state_to(state: ExecutorState) -> Json:
    return {
        "node_epoch": str(state.node_epoch),
        "environments": [str(identifier) for identifier in state.environments],
        "running": [_running_to(each) for each in state.running],
        "capabilities": [_capability_to(capability) for capability in state.capabilities],
        "driver": state.driver,
    }


def state_from(data: Json, reports: Iterable[Json]) -> ExecutorState:
    """Reports come in frames of their own, ahead of the state: all of them may be too much for one."""
    return ExecutorState(
        node_epoch=UUID(data["node_epoch"]),
        environments=tuple(UUID(identifier) for identifier in data["environments"]),
        running=tuple(_running_from(each) for each in data["running"]),
        reports=tuple(report_from(report) for report in reports),
        capabilities=tuple(capability_from(capability) for capability in data["capabilities"]),
        driver=data["driver"],
    )


def _running_to(running: RunningAttempt) -> Json:
    return {
        "fence": fence_to(running.fence),
        "environment": str(running.environment),
        "cores": running.cores,
        "cpu_milli": running.cpu_milli,
        "amounts_seq": running.amounts_seq,
    }


def _running_from(data: Json) -> RunningAttempt:
    known = {"fence": fence_from(data["fence"]), "environment": UUID(data["environment"])}
    return RunningAttempt(**{**data, **known, "cores": tuple(data["cores"])})


def _capability_to(capability: Capability) -> Json:
    return {name: getattr(capability, name) for name in ("name", "level", "mechanism", "reason", "fix")}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
