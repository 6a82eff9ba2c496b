"""Test the choice of a delegated cgroup with a `systemd-run` that only runs its command."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from arl_local.delegated_cgroup import delegation_command

SOME_USER = 1000


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup.controllers"
    path.touch()
    return path


def an_environment(tmp_path: Path, *, systemd_run: str | None, lingers: str = "yes") -> Mapping[str, str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("systemd-run", systemd_run), ("loginctl", f'test "$4" = {SOME_USER} && echo {lingers}')):
        if text is not None:
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.defpath}", "XDG_RUNTIME_DIR": str(tmp_path)}


def test_working_systemd_gives_a_delegated_scope(tmp_path: Path, unified: Path) -> None:
    works = 'test -n "$XDG_RUNTIME_DIR" && while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    environment = an_environment(tmp_path, systemd_run=works)
    command = delegation_command(environment, user=SOME_USER, unified=unified)
    assert command[0].endswith("/systemd-run")
    assert {"--user", "--scope", "Delegate=yes"} <= set(command)
    assert command[-1] == "--"


@pytest.mark.parametrize("systemd_run", [None, "echo no bus >&2; exit 1"])
def test_missing_or_refusing_systemd_gives_no_scope(tmp_path: Path, unified: Path, systemd_run: str | None) -> None:
    environment = an_environment(tmp_path, systemd_run=systemd_run)
    assert delegation_command(environment, user=SOME_USER, unified=unified) == ()


@pytest.mark.parametrize("missing", ["root", "bus", "cgroup v2", "linger"])
def test_missing_requirement_gives_no_scope(tmp_path: Path, unified: Path, missing: str) -> None:
    lingers = "no" if missing == "linger" else "yes"
    environment = dict(an_environment(tmp_path, systemd_run="exit 0", lingers=lingers))
    if missing == "bus":
        del environment["XDG_RUNTIME_DIR"]
    if missing == "cgroup v2":
        unified.unlink()
    assert delegation_command(environment, user=0 if missing == "root" else SOME_USER, unified=unified) == ()
