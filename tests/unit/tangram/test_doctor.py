"""Findings of `tangram doctor` that come from the capabilities of nodes."""

from pathlib import Path

from arl_tangram.cli.system.doctor import _verifier_findings
from arl_tangram.cli.system.machine_checks import FindingLevel, inspect_machine


def test_doctor_warns_of_a_node_that_cannot_run_the_verifier_math() -> None:
    absent = {"name": "math_verifier", "level": "absent", "reason": "no package", "fix": "install it"}
    nodes = [
        {"name": "cpu-1", "enforced": [{"name": "files", "level": "absent"}, absent]},
        {"name": "cpu-2", "enforced": [absent | {"level": "enforced"}]},
        {"name": "gpu-1", "enforced": None},
    ]
    [finding] = _verifier_findings(nodes)
    assert (finding.name, finding.level) == ("verifier math on cpu-1", FindingLevel.WARN)
    assert (finding.detail, finding.fix) == ("no package", "install it")


def test_doctor_warns_if_all_services_use_the_database_owner(tmp_path: Path) -> None:
    (tmp_path / "database_roles").write_text("separate")
    [separate] = [finding for finding in inspect_machine(tmp_path) if finding.name == "postgres"]
    (tmp_path / "database_roles").write_text("owner")
    [shared] = [finding for finding in inspect_machine(tmp_path) if finding.name == "postgres"]
    assert (separate.level, shared.level) == (FindingLevel.OK, FindingLevel.WARN)
    assert "CREATEROLE" in (shared.fix or "")
