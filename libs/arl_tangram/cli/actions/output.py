"""The output of an action on a terminal, and the exit code that it stands for."""

import json
import sys
from signal import Signals
from uuid import UUID

from arl_core.domain.states import ActionOutcome
from arl_tangram.cli.output import EXIT_FAILED, OutputFormat, print_model, stderr, stdout
from arl_tangram.cli.terminal_text import write_output, write_text
from arl_tangram.client import Tangram
from arl_tangram.resources.output_streams import OutputData
from arl_wire.actions.action import Action
from arl_wire.actions.output_events import OutputRestart, OutputTruncated
from arl_wire.scores import Score

__all__ = ["exit_code_of", "format_score", "print_action", "stream_action"]

EXIT_TIMEOUT = 124
"""Exit code after a timeout, as of timeout(1)."""
SHOWN_WAIT_S = 0.1
"""Time of waiting for shared cores from which it is shown."""
EXIT_DID_NOT_RUN = 125
"""Exit code if the program did not run or hit a limit, as of docker-run(1)."""


def exit_code_of(action: Action) -> int:
    """Return the exit code of the program, or the code of the outcome if the program has none. 0 means success."""
    if action.outcome is None or action.ok:
        return 0
    if action.outcome is ActionOutcome.USER_TIMEOUT:
        return EXIT_TIMEOUT
    if action.outcome is not ActionOutcome.USER_ERROR:
        return EXIT_DID_NOT_RUN
    if action.result is not None and action.result.signal is not None:
        return 128 + action.result.signal
    if action.kind == "exec" and action.exit_code is None:
        return EXIT_DID_NOT_RUN
    return action.exit_code or EXIT_FAILED


def stream_action(tangram: Tangram, id: UUID) -> Action:
    """Show the output of an action live, then its outcome. Return the settled action."""
    for event in tangram.stream_logs(id):
        match event:
            case OutputData():
                write_output(event.data, event.stream)
            case OutputTruncated():
                stderr.print(f"{event.stream} truncated: {event.kept_bytes} bytes are kept", markup=False)
            case OutputRestart():
                stderr.print("the action starts again: new attempt", markup=False)
    action = tangram.get(id)
    _print_outcome(action)
    return action


def print_action(action: Action, output: OutputFormat) -> None:
    """Print an action: its output and outcome, or everything as JSON."""
    if output is OutputFormat.JSON:
        print_model(action)
        return
    _print_result(action)
    if action.settled_at is None:
        stdout.print(f"{action.id} {action.state}", markup=False)
    else:
        _print_outcome(action)


def _print_result(action: Action) -> None:
    if action.result is None:
        return
    write_text(action.result.stdout.text)
    write_text(action.result.stderr.text, sys.stderr)
    for name, stream in (("stdout", action.result.stdout), ("stderr", action.result.stderr)):
        if stream.truncated:
            stderr.print(f"{name} truncated: the program wrote {stream.total_bytes} bytes", markup=False)
    if action.result.response is not None:
        write_text(action.result.response.body.text)
    for score in action.result.scores or ():
        stdout.print(format_score(score), markup=False)


def format_score(score: Score) -> str:
    """Return the score of an item, its error, or the answer of a chat."""
    if score.error is not None:
        return f"{score.error.code}: {score.error.message}"
    if score.score is None:
        return json.dumps(score.completion, ensure_ascii=False)
    return f"{score.score:.6f}" + ("  (the text was truncated)" if score.truncated else "")


def _program_end(action: Action) -> str:
    """Return how a program failed: its exit code or the name of its signal."""
    if action.outcome is not ActionOutcome.USER_ERROR or action.result is None:
        return ""
    if (number := action.result.signal) is not None:
        return Signals(number).name if number in set(Signals) else f"signal {number}"
    return f"exit code {action.exit_code}" if action.exit_code is not None else ""


def _print_outcome(action: Action) -> None:
    times = action.times
    detail = f" ({how})" if (how := action.reason or _program_end(action)) else ""
    message = f": {action.message}" if action.message else ""
    waited = times.run_s is not None and times.counted_s is not None and times.run_s - times.counted_s >= SHOWN_WAIT_S
    counted = f" ({times.counted_s:.3f} s without waiting for cores)" if waited else ""
    stderr.print(
        f"{action.id} {action.outcome}{detail}{message}  queue {times.queue_s or 0:.3f} s  run {times.run_s or 0:.3f} s"
        f"{counted}  overhead {times.overhead_s or 0:.3f} s",
        markup=False,
    )
