"""Test the reports of attacks: a benchmark must notice that an attack did not take place."""

import socket
import subprocess
import sys
from collections import Counter

import pytest

from arl_bench.control_plane import attack_load
from arl_bench.control_plane.attack_load import ATTACKS, BEGIN_LINE, AttackReport


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_without_requests_has_a_fault(name: str) -> None:
    fault = ATTACKS[name].fault(AttackReport(0, Counter(not_connected=7)))
    assert fault is not None
    assert fault.startswith("0 requests were sent")
    assert fault.endswith("responses: not_connected: 7")


@pytest.mark.parametrize(("status", "has_fault"), [("404", True), ("401", True), ("422", False), ("closed", False)])
def test_attack_whose_requests_miss_the_gateway_has_a_fault(status: str, has_fault: bool) -> None:
    report = AttackReport(50, Counter({status: 50}))
    assert (ATTACKS["archives"].fault(report) is not None) is has_fault


def test_requests_without_a_response_yet_count_as_an_attack() -> None:
    assert ATTACKS["archives"].fault(AttackReport(4, Counter())) is None


@pytest.mark.parametrize("name", ["bodies", "connections"])
def test_attacker_reports_that_it_cannot_connect(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    command = [sys.executable, "-m", attack_load.__name__, name, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline().strip() == BEGIN_LINE
        attacker.terminate()
        report = AttackReport.from_json(attacker.communicate(timeout=60)[0])
    assert (report.sent, attacker.returncode) == (0, 0)
    assert ATTACKS[name].fault(report) is not None
