"""Fixtures for all tests."""

import signal

from support.postgres import clone_database, database, databases

__all__ = ["clone_database", "database", "databases"]


def pytest_configure() -> None:
    """Stop ignoring SIGINT, which a shell makes background jobs ignore: tests interrupt the processes they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
