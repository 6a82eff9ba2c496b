"""`doctor`: the capabilities of this machine, before and after the system is up."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import httpx
import typer
from rich.table import Table

from arl_tangram.cli.client import remote_url
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_FAILED, FormatOption, OutputFormat, print_json, stdout
from arl_tangram.cli.system.machine_checks import FindingLevel, MachineFinding, inspect_machine

__all__ = ["register"]

_COLOURS = {FindingLevel.OK: "green", FindingLevel.INFO: "cyan", FindingLevel.WARN: "yellow", FindingLevel.FAIL: "red"}


_DRIVERS = ("namespaces", "landlock")
"""Drivers that confine actions, the default first."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Start")(doctor)


def doctor(context: typer.Context, directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """Check this machine and its sandboxes. Exit code 1 if the system cannot run here.

    If TANGRAM_URL names another system, show the nodes of that one, with the key in TANGRAM_API_KEY.
    """
    state = LocalState(directory)
    findings = inspect_machine(state.directory)
    remote = remote_url(context, state.directory)
    running = remote is not None or state.supervisor_pid() is not None
    if remote is not None:
        nodes, more = _fetch_nodes(remote, os.environ.get("TANGRAM_API_KEY"), missing="set TANGRAM_API_KEY")
    elif running:
        nodes, more = _fetch_nodes(state.service_urls().get("gateway"), state.api_key(), missing="tangram status")
    else:
        nodes, more = _check_drivers()
    findings += [*more, *_verifier_findings(nodes)]
    if output is OutputFormat.JSON:
        print_json({"running": running, "checks": [f.as_dict() for f in findings], "nodes": nodes})
    else:
        stdout.print(_findings_table(findings))
        for node in (node for node in nodes if node.get("enforced")):
            stdout.print(f"\nlimits and isolation on {node.get('name', '?')}", markup=False)
            stdout.print(_capabilities_table(node.get("enforced") or []))
            if names := [template["name"] for template in node.get("templates") or []]:
                stdout.print(f"imported templates: {', '.join(names)}", markup=False)
    if any(f.level is FindingLevel.FAIL for f in findings):
        raise typer.Exit(EXIT_FAILED)


def _check_drivers() -> tuple[list[dict[str, Any]], list[MachineFinding]]:
    """Report what the launcher can enforce here. Start one in check mode for each driver."""
    if importlib.util.find_spec("arl_cpu") is None:
        return [], []
    nodes, findings, works = [], [], set()
    for driver in _DRIVERS:
        checked = subprocess.run(
            [sys.executable, "-m", "arl_cpu.launcher", "--check", driver], capture_output=True, text=True, check=False
        )
        if checked.returncode:
            reason = checked.stderr.strip().removeprefix("arl_cpu.launcher: ")
            findings.append(MachineFinding(f"driver {driver}", FindingLevel.INFO, reason))
            continue
        works.add(driver)
        findings.append(MachineFinding(f"driver {driver}", FindingLevel.OK, "works on this machine"))
        nodes.append({"name": f"this machine with the {driver} driver", "enforced": json.loads(checked.stdout)})
    findings.append(_driver_finding(works))
    return nodes, findings


def _driver_finding(working: set[str]) -> MachineFinding:
    chosen = next((driver for driver in _DRIVERS if driver in working), None)
    if chosen is None:
        fix = "tangram up --unsafe-local runs trusted code without isolation"
        return MachineFinding(
            "sandbox", FindingLevel.FAIL, f"neither {' nor '.join(_DRIVERS)} works on this machine", fix
        )
    if chosen != _DRIVERS[0]:
        return MachineFinding(
            "sandbox", FindingLevel.WARN, f"{chosen}, because {_DRIVERS[0]} does not work on this machine"
        )
    return MachineFinding("sandbox", FindingLevel.OK, chosen)


def _verifier_findings(nodes: Iterable[dict[str, Any]]) -> list[MachineFinding]:
    """Return a warning for each node whose sandboxes cannot run the verifier `math`."""
    return [
        MachineFinding(
            f"verifier math on {node.get('name', '?')}", FindingLevel.WARN, each.get("reason", ""), each.get("fix")
        )
        for node in nodes
        for each in node.get("enforced") or []
        if each.get("name") == "math_verifier" and each.get("level") == "absent"
    ]


def _fetch_nodes(
    gateway: str | None, key: str | None, *, missing: str
) -> tuple[list[dict[str, Any]], list[MachineFinding]]:
    """Return the nodes as the gateway reports them, or a finding that explains why it cannot.

    `missing` says what to do if the address or the key is unknown.
    """
    if gateway is None or not key:
        found = "the system is not ready yet" if gateway is None else f"no API key for {gateway}"
        return [], [MachineFinding("nodes", FindingLevel.WARN, found, missing)]
    try:
        answer = httpx.get(f"{gateway}/v1/admin/nodes", headers={"authorization": f"Bearer {key}"}, timeout=5)
        answer.raise_for_status()
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return [], [
            MachineFinding(
                "nodes", FindingLevel.WARN, f"the gateway does not answer: {error}", "tangram system logs gateway"
            )
        ]
    listed = body if isinstance(body, list) else body.get("nodes", body.get("items", []))
    return [node for node in listed if isinstance(node, dict)], []


def _findings_table(findings: Iterable[MachineFinding]) -> Table:
    table = Table("", "check", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        colour = _COLOURS[finding.level]
        table.add_row(f"[{colour}]{finding.level}[/{colour}]", finding.name, finding.detail, finding.fix or "")
    return table


def _capabilities_table(enforced: Iterable[dict[str, Any]]) -> Table:
    columns = ("name", "level", "mechanism", "reason", "fix")
    table = Table(*columns, box=None, pad_edge=False)
    for capability in enforced:
        table.add_row(*(str(capability.get(column) or "") for column in columns))
    return table
