"""Test how the launcher derives outcomes from exit statuses and limits, and its wire format."""

import struct

import pytest

from arl_cpu.contract.launcher_protocol import (
    FrameReader,
    decode_report,
    decode_spec,
    encode_frame,
    encode_report,
    encode_spec,
)
from arl_cpu.launcher.isolation.seccomp import build_filter
from arl_cpu.launcher.sandbox.attempt import AttemptEnd, outcome_of
from support.sandbox import a_command, a_program, a_report


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (AttemptEnd(exit_status=0), ("ok", None)),
        (AttemptEnd(exit_status=1), ("user_error", None)),
        (AttemptEnd(exit_status=-11), ("user_error", None)),
        (AttemptEnd(exit_status=-9), ("user_error", None)),
        (AttemptEnd(cause="timeout", exit_status=-9), ("user_timeout", "timeout_s")),
        (AttemptEnd(cause="wall_timeout", exit_status=-9), ("user_timeout", "wall_timeout_s")),
        (AttemptEnd(cause="timeout", exit_status=0), ("ok", None)),
        (AttemptEnd(cause="timeout", exit_status=None), ("user_timeout", "timeout_s")),
        (AttemptEnd(cause="timeout", exit_status=-9, oom_kills=1), ("user_timeout", "timeout_s")),
        (AttemptEnd(cause="cancelled", exit_status=-9), ("cancelled", None)),
        (AttemptEnd(cause="cancelled", exit_status=3), ("user_error", None)),
        (AttemptEnd(cause="output", exit_status=-9), ("limit_exceeded", "output")),
        (AttemptEnd(cause="setup", exit_status=None), ("infra_error", "setup_failed")),
        (AttemptEnd(cause="setup", exit_status=None, has_leftovers=True), ("user_error", "blocked_by_leftovers")),
        (AttemptEnd(cause="stopped", exit_status=None), ("infra_error", "node_stopped")),
        (AttemptEnd(exit_status=None), ("infra_error", "environment_lost")),
        (AttemptEnd(exit_status=None, oom_kills=1), ("limit_exceeded", "memory")),
        (AttemptEnd(exit_status=-9, oom_kills=1), ("limit_exceeded", "memory")),
        (AttemptEnd(exit_status=0, oom_kills=1), ("ok", None)),
        (AttemptEnd(exit_status=1, over_memory=True), ("limit_exceeded", "memory")),
        (AttemptEnd(exit_status=1, pids_refused=3), ("limit_exceeded", "pids")),
        (AttemptEnd(exit_status=0, pids_refused=3), ("ok", None)),
        (AttemptEnd(exit_status=1, limit_if_failed="disk"), ("limit_exceeded", "disk")),
        (AttemptEnd(exit_status=0, limit_if_failed="disk"), ("ok", None)),
        (AttemptEnd(limit="pids"), ("limit_exceeded", "pids")),
        (AttemptEnd(refused=True), ("user_error", None)),
    ],
)
def test_attempt_end_maps_to_one_outcome_and_reason(ended: AttemptEnd, outcome: tuple[str, str | None]) -> None:
    assert outcome_of(ended) == outcome


class TestProtocol:
    @pytest.mark.parametrize("spec", [a_command("a", "b", stdin=b"\xff", files={"x": b"\0"}), a_program("pass")])
    def test_spec_is_equal_after_encoding_and_decoding(self, spec: object) -> None:
        frames = FrameReader()
        wire = encode_frame(encode_spec(spec))  # type: ignore[arg-type]
        (message,) = (each for byte in wire for each in frames.feed(bytes([byte])))
        assert decode_spec(message) == spec

    def test_report_is_equal_after_encoding_and_decoding(self) -> None:
        report = a_report()
        (message,) = FrameReader().feed(encode_frame(encode_report(report)))
        assert decode_report(message) == report

    def test_frame_above_the_size_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="are allowed"):
            list(FrameReader().feed(struct.pack(">I", 1 << 31)))


class TestSystemCallFilter:
    @pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
    def test_filter_ends_with_allow_and_all_jumps_stay_inside(self, machine: str) -> None:
        code = build_filter(has_cgroup=False, machine=machine)
        instructions = list(struct.iter_unpack("HBBI", code))
        assert instructions[-1] == (0x06, 0, 0, 0x7FFF0000)
        assert len(instructions) < 4096
        for index, (_, if_true, if_false, _) in enumerate(instructions[:-1]):
            assert index + 1 + max(if_true, if_false) < len(instructions)
