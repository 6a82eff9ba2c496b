"""`check`: consistency of rows, processes, cgroups, mounts, files and amounts of one system."""

import socket
import time
from typing import Any

import httpx
import typer
from rich.table import Table

from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_FAILED, FormatOption, OutputFormat, fail, print_json, stdout
from arl_tangram.cli.system.host_resources import HostResourceScanner, is_process_alive
from arl_wire.admin.consistency import ConsistencyFinding, ConsistencyReport

__all__ = ["register"]

_SCANS = 4
_SCAN_INTERVAL_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Operate")(check)


def check(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """Check that rows, processes, cgroups, mounts, files and allocations agree. Exit code 1 if not.

    Transient differences are ignored: only differences seen by four scans within two seconds are reported.
    Environments on this machine are compared by count, and only if no action is granted or running. If the system is
    down, only its leftovers are checked.
    """
    state = LocalState(directory)
    rows, findings, compared = _scan_repeatedly(state)
    if output is OutputFormat.JSON:
        print_json(_to_document(rows, findings, compared))
    else:
        _print_report(rows, findings, compared)
    if findings:
        raise typer.Exit(EXIT_FAILED)


def _scan_repeatedly(state: LocalState) -> tuple[ConsistencyReport | None, list[ConsistencyFinding], list[str]]:
    """Return the rows of the last scan, the findings that every scan made, and what the last scan compared."""
    rows, last, compared = _scan(state)
    kept = {_finding_key(finding) for finding in last}
    for _ in range(_SCANS - 1):
        if not kept:
            break
        time.sleep(_SCAN_INTERVAL_S)
        rows, last, compared = _scan(state)
        kept &= {_finding_key(finding) for finding in last}
    return rows, [finding for finding in last if _finding_key(finding) in kept], compared


def _scan(state: LocalState) -> tuple[ConsistencyReport | None, list[ConsistencyFinding], list[str]]:
    leftovers = HostResourceScanner(state.directory)
    findings, compared = list(leftovers.findings()), ["leftovers"]
    if state.supervisor_pid() is None:
        return None, findings, compared
    findings += _find_dead_processes(state)
    rows = _fetch_report(state)
    findings += rows.findings
    compared += ["processes", "rows", "amounts"]
    use = next((node for node in rows.nodes if node.node == socket.gethostname()), None)
    here, complete = leftovers.environments()
    if use is not None and use.attempts == 0 and (here or complete):
        findings += _compare_environments(here, complete=complete, in_rows=use.environments)
        compared.append("environments")
    return rows, findings, compared


def _compare_environments(on_host: set[str], *, complete: bool, in_rows: int) -> list[ConsistencyFinding]:
    detail = f"{len(on_host)} here, {in_rows} in rows"
    if len(on_host) > in_rows:
        return [ConsistencyFinding(check="environment_not_in_rows", subject=" ".join(sorted(on_host)), detail=detail)]
    if complete and len(on_host) < in_rows:
        return [ConsistencyFinding(check="environment_not_here", subject=socket.gethostname(), detail=detail)]
    return []


def _find_dead_processes(state: LocalState) -> list[ConsistencyFinding]:
    """Compare the supervisor's list with the live processes. Each listed process must exist."""
    found = []
    for name, process in dict(state.processes().get("processes") or {}).items():
        pid = process.get("pid")
        if pid is None or not is_process_alive(int(pid)):
            found.append(ConsistencyFinding(check="process_not_running", subject=name, detail=f"pid {pid}"))
    return found


def _fetch_report(state: LocalState) -> ConsistencyReport:
    gateway, key = state.service_urls().get("gateway"), state.api_key()
    if gateway is None or key is None:
        fail("the system is not ready yet; see `tangram status`")
    try:
        answer = httpx.get(f"{gateway}/v1/admin/consistency", headers={"authorization": f"Bearer {key}"}, timeout=30)
        answer.raise_for_status()
        return ConsistencyReport.model_validate_json(answer.content)
    except (httpx.HTTPError, ValueError) as error:
        fail(f"the gateway does not answer: {error}; see `tangram system logs gateway`")


def _finding_key(finding: ConsistencyFinding) -> tuple[str, str]:
    return finding.check, finding.subject


def _to_document(
    rows: ConsistencyReport | None, findings: list[ConsistencyFinding], compared: list[str]
) -> dict[str, Any]:
    return {
        "clean": not findings,
        "compared": compared,
        "findings": [finding.model_dump() for finding in findings],
        "rows": rows.model_dump(mode="json", exclude={"findings"}) if rows is not None else None,
    }


def _print_report(rows: ConsistencyReport | None, findings: list[ConsistencyFinding], compared: list[str]) -> None:
    if rows is not None:
        stdout.print("actions  ", ", ".join(f"{count} {state}" for state, count in sorted(rows.actions.items())))
        for allocation in rows.allocations:
            usage = f"{allocation.allocated} of {allocation.capacity}"
            stdout.print(f"allocated {allocation.node} {allocation.resource} {usage}", markup=False)
    stdout.print(f"compared  {', '.join(compared)}")
    if not findings:
        stdout.print("clean" if rows is not None else "clean; the system is down, so only leftovers were checked")
        return
    table = Table("check", "subject", "detail", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(finding.check, finding.subject, finding.detail)
    stdout.print(table)
