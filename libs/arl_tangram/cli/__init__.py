"""The command line `tangram`. Its commands are in the modules of this package.

Another distribution adds a command with an entry point of the group `tangram.commands`. The entry point is a function
that takes a Typer application and registers the command in it.

Exit codes: 0 success, 1 failure, 2 usage error, 3 not running, 5 no sandbox works on this machine, 130 interrupted.
Commands that run a program return its exit code; see `tangram submit --help`.
"""

import os
import signal

__all__ = ["main"]

EXIT_INTERRUPTED = 130
"""The same as in `arl_tangram.cli.output`, whose imports take long."""


def main() -> None:
    """Run the console script. Ctrl-C ends it with code 130, also while it imports its commands."""
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, _exit_at_once)
    from arl_tangram.cli.application import main as run

    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        if is_interruptible:
            # The command has ended and keeps its exit code while the interpreter shuts down.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _exit_at_once(*_: object) -> None:
    """Exit without an exception, which any import could turn into a traceback. No command runs."""
    os._exit(EXIT_INTERRUPTED)
