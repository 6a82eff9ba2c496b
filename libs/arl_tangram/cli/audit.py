"""`audit`: do rows, processes, cgroups, mounts, files and amounts of one system agree?"""

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import typer
from rich.table import Table

from arl_tangram.cli.output import EXIT_FAILED, Format, FormatOption, fail, print_json, stdout
from arl_tangram.cli.state import DirOption, LocalState
from arl_tangram.leftovers import Leftovers
from arl_wire.audit import Audit, AuditFinding

__all__ = ["register"]

_LOOKS = 4
_BETWEEN_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(audit)


def audit(directory: DirOption, output: FormatOption = Format.TEXT) -> None:
    """Compare rows, processes, cgroups, mounts, files and amounts. Exit code 1: something does not agree.

    What is on its way for a moment is no finding: a finding is what each of four looks within two seconds saw.
    Environments on this machine are counted, not named, and only in looks in which no action is granted or running.
    Of a system that is down only what it left behind is looked at.
    """
    state = LocalState(directory)
    rows, findings, compared = _look_repeatedly(state)
    if output is Format.JSON:
        print_json(_document(rows, findings, compared))
    else:
        _show(rows, findings, compared)
    if findings:
        raise typer.Exit(EXIT_FAILED)


def _look_repeatedly(state: LocalState) -> tuple[Audit | None, list[AuditFinding], list[str]]:
    """The last look's rows, what every look found, and what could be compared in the last one."""
    rows, last, compared = _look(state)
    kept = {_key(finding) for finding in last}
    for _ in range(_LOOKS - 1):
        if not kept:
            break
        time.sleep(_BETWEEN_S)
        rows, last, compared = _look(state)
        kept &= {_key(finding) for finding in last}
    return rows, [finding for finding in last if _key(finding) in kept], compared


def _look(state: LocalState) -> tuple[Audit | None, list[AuditFinding], list[str]]:
    leftovers = Leftovers(state.directory)
    findings, compared = list(leftovers.findings()), ["leftovers"]
    if state.supervisor() is None:
        return None, findings, compared
    findings += _processes(state)
    rows = _ask(state)
    findings += rows.findings
    compared += ["processes", "rows", "amounts"]
    use = next((node for node in rows.nodes if node.node == socket.gethostname()), None)
    here, complete = leftovers.environments()
    if use is not None and use.attempts == 0 and (here or complete):
        findings += _environments(here, complete=complete, in_rows=use.environments)
        compared.append("environments")
    return rows, findings, compared


def _environments(here: set[str], *, complete: bool, in_rows: int) -> list[AuditFinding]:
    detail = f"{len(here)} here, {in_rows} in rows"
    if len(here) > in_rows:
        return [AuditFinding(check="environment_not_in_rows", subject=" ".join(sorted(here)), detail=detail)]
    if complete and len(here) < in_rows:
        return [AuditFinding(check="environment_not_here", subject=socket.gethostname(), detail=detail)]
    return []


def _processes(state: LocalState) -> list[AuditFinding]:
    """The supervisor's own list; a process it believes to run has to be there."""
    found = []
    for name, process in dict(state.processes().get("processes") or {}).items():
        pid = process.get("pid")
        if pid is None or not _lives(int(pid)):
            found.append(AuditFinding(check="process_not_running", subject=name, detail=f"pid {pid}"))
    return found


def _lives(pid: int) -> bool:
    """A process that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _ask(state: LocalState) -> Audit:
    gateway, key = state.endpoints().get("gateway"), state.api_key()
    if gateway is None or key is None:
        fail("the system is not ready yet; `tangram status` says more")
    try:
        answer = httpx.get(f"{gateway}/v1/admin/audit", headers={"authorization": f"Bearer {key}"}, timeout=30)
        answer.raise_for_status()
        return Audit.model_validate_json(answer.content)
    except (httpx.HTTPError, ValueError) as error:
        fail(f"the gateway can't say: {error}; `tangram logs gateway` says more")


def _key(finding: AuditFinding) -> tuple[str, str]:
    return finding.check, finding.subject


def _document(rows: Audit | None, findings: list[AuditFinding], compared: list[str]) -> dict[str, Any]:
    return {
        "clean": not findings,
        "compared": compared,
        "findings": [finding.model_dump() for finding in findings],
        "rows": rows.model_dump(mode="json", exclude={"findings"}) if rows is not None else None,
    }


def _show(rows: Audit | None, findings: list[AuditFinding], compared: list[str]) -> None:
    if rows is not None:
        stdout.print("actions  ", ", ".join(f"{count} {state}" for state, count in sorted(rows.actions.items())))
        for held in rows.held:
            stdout.print(f"held      {held.node} {held.resource} {held.held} of {held.capacity}", markup=False)
    stdout.print(f"compared  {', '.join(compared)}")
    if not findings:
        stdout.print("clean" if rows is not None else "clean, as far as can be seen while the system is down")
        return
    table = Table("check", "subject", "detail", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(finding.check, finding.subject, finding.detail)
    stdout.print(table)
