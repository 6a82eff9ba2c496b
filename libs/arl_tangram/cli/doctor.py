"""`doctor`: what this machine can do and enforce, said plainly, before and after the system is up."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import httpx
import typer
from rich.table import Table

from arl_tangram.cli.machine import Finding, Level, inspect_machine
from arl_tangram.cli.output import EXIT_FAILED, Format, FormatOption, print_json, stdout
from arl_tangram.cli.state import DirOption, LocalState

__all__ = ["register"]

_COLOURS = {Level.OK: "green", Level.INFO: "cyan", Level.WARN: "yellow", Level.FAIL: "red"}


_DRIVERS = ("namespaces", "landlock")
"""Drivers that confine actions, the default first."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(doctor)


def doctor(directory: DirOption, output: FormatOption = Format.TEXT) -> None:
    """Check this machine, and what confines actions on it. Exit code 1: the system can't run here."""
    state = LocalState(directory)
    findings = inspect_machine(state.directory)
    running = state.supervisor() is not None
    nodes, more = _ask_nodes(state) if running else _try_sandbox()
    findings += more
    if output is Format.JSON:
        print_json({"running": running, "checks": [f.as_dict() for f in findings], "nodes": nodes})
    else:
        stdout.print(_findings_table(findings))
        for node in (node for node in nodes if node.get("enforced")):
            stdout.print(f"\nwhat confines actions on {node.get('name', '?')}", markup=False)
            stdout.print(_capabilities_table(node.get("enforced") or []))
            if names := [template["name"] for template in node.get("templates") or []]:
                stdout.print(f"templates besides host: {', '.join(names)}", markup=False)
    if any(f.level is Level.FAIL for f in findings):
        raise typer.Exit(EXIT_FAILED)


def _try_sandbox() -> tuple[list[dict[str, Any]], list[Finding]]:
    """What a launcher would find here, by starting one for each driver that only looks."""
    if importlib.util.find_spec("arl_cpu") is None:
        return [], []
    nodes, findings, works = [], [], set()
    for driver in _DRIVERS:
        checked = subprocess.run(
            [sys.executable, "-m", "arl_cpu.launcher", "--check", driver], capture_output=True, text=True, check=False
        )
        if checked.returncode:
            reason = checked.stderr.strip().removeprefix("arl_cpu.launcher: ")
            findings.append(Finding(f"driver {driver}", Level.INFO, reason))
            continue
        works.add(driver)
        findings.append(Finding(f"driver {driver}", Level.OK, "works here"))
        nodes.append({"name": f"this machine with the {driver} driver", "enforced": json.loads(checked.stdout)})
    findings.append(_choice(works))
    return nodes, findings


def _choice(works: set[str]) -> Finding:
    chosen = next((driver for driver in _DRIVERS if driver in works), None)
    if chosen is None:
        fix = "tangram up --unsafe-local runs code that you trust"
        return Finding("sandbox", Level.FAIL, f"neither {' nor '.join(_DRIVERS)} works here", fix)
    if chosen != _DRIVERS[0]:
        return Finding("sandbox", Level.WARN, f"{chosen}, since {_DRIVERS[0]} does not work here")
    return Finding("sandbox", Level.OK, chosen)


def _ask_nodes(state: LocalState) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The nodes as the gateway knows them, or why it can't be asked."""
    gateway, key = state.endpoints().get("gateway"), state.api_key()
    if gateway is None or key is None:
        return [], [Finding("nodes", Level.WARN, "the system is not ready yet", "tangram status")]
    try:
        answer = httpx.get(f"{gateway}/v1/admin/nodes", headers={"authorization": f"Bearer {key}"}, timeout=5)
        answer.raise_for_status()
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return [], [Finding("nodes", Level.WARN, f"the gateway can't say: {error}", "tangram logs gateway")]
    listed = body if isinstance(body, list) else body.get("nodes", body.get("items", []))
    return [node for node in listed if isinstance(node, dict)], []


def _findings_table(findings: Iterable[Finding]) -> Table:
    table = Table("", "check", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        colour = _COLOURS[finding.level]
        table.add_row(f"[{colour}]{finding.level}[/{colour}]", finding.name, finding.found, finding.fix or "")
    return table


def _capabilities_table(enforced: Iterable[dict[str, Any]]) -> Table:
    columns = ("name", "level", "mechanism", "reason", "fix")
    table = Table(*columns, box=None, pad_edge=False)
    for capability in enforced:
        table.add_row(*(str(capability.get(column) or "") for column in columns))
    return table
