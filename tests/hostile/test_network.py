"""Attack the network of environments: nothing may be reached that the policy does not list."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecutionReport, NetworkVersion
from support.conditions import eventually
from support.network import CLIENT, PUBLIC, SmallInternet, a_small_internet, attempts, reasons
from support.sandbox import (
    ROOT_INSIDE,
    Bench,
    a_bench,
    a_command,
    a_program,
    an_environment,
    cgroups_of,
    children_of,
    living_descendants,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the servers of the test use ports 80 and 443")

ALLOWED = {"allow": ["good.example", "*.wild.example:80", "odd.example:8443", "inner.example", "meta.example"]}
ALLOWED["allow"] += ["mapped.example", "rebind.example", "moved.example", f"{PUBLIC}:8443"]


@pytest.fixture(scope="module")
async def internet() -> AsyncIterator[SmallInternet]:
    async with a_small_internet(80, 443, 8443) as internet:
        yield internet


@pytest.fixture(autouse=True)
def names(internet: SmallInternet) -> None:
    """Reset the names and what was received."""
    internet.names.clear()
    for name in ("good.example", "a.wild.example", "odd.example", "evil.example", "moved.example"):
        internet.names[name] = [PUBLIC]
    internet.names |= {"inner.example": ["127.0.0.1"], "meta.example": ["169.254.169.254"]}
    internet.names |= {"mapped.example": ["::ffff:127.0.0.1"], "rebind.example": [PUBLIC, "127.0.0.1"]}
    for each in (internet.received, internet.private, internet.queries):
        each.clear()


@pytest.fixture(
    scope="module", params=["namespaces", pytest.param("namespaces+python", marks=pytest.mark.slow), *ROOT_INSIDE]
)
async def sandbox(
    request: pytest.FixtureRequest, internet: SmallInternet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param, **internet.variables) as bench:
        yield bench


@pytest.fixture(autouse=True)
async def nothing_is_left(sandbox: Bench) -> AsyncIterator[None]:
    """Check after every attack that only the zygote and the egress process are left, without a namespace."""
    yield
    launcher = sandbox.launcher
    assert launcher is not None
    await eventually(lambda: len(living_descendants(launcher.pid)) <= 2 and cgroups_of(launcher) == [])
    own = os.stat("/proc/self/ns/net").st_ino
    assert all(os.stat(f"/proc/{pid}/ns/net").st_ino == own for pid in children_of(launcher))


@pytest.fixture
async def trajectory(sandbox: Bench) -> AsyncIterator[EnvironmentSpec]:
    environment = an_environment(network=ALLOWED)
    yield environment
    await sandbox.destroy(environment.id)


def egress_of(sandbox: Bench) -> int:
    assert sandbox.launcher is not None
    [pid] = [
        pid for pid in children_of(sandbox.launcher) if b"arl_cpu.egress" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


async def test_listed_hosts_are_reached_in_every_way(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    found, network = await attempts(
        sandbox,
        trajectory,
        proxy='get("http://good.example/", "good.example")',
        tunnel='connect("good.example:80")',
        tunnel_tls='connect("good.example:443", hello("good.example"))',
        wildcard='get("http://a.wild.example/", "a.wild.example")',
        port='connect("odd.example:8443", hello("odd.example"))',
        address=f'connect("{PUBLIC}:8443", hello("anything.example"))',
        direct_http='directly("good.example", 80, http("good.example"))',
        direct_tls='directly("good.example", 443, hello("good.example"))',
        split_hello='directly("93.184.216.34", 443, hello("good.example"))',
    )
    assert {name for name, text in found.items() if "hello" in text} == {"proxy", "tunnel", "wildcard", "direct_http"}
    reached = {"tunnel_tls", "port", "address", "direct_tls", "split_hello"}
    assert {name for name, text in found.items() if text == "tls reached"} == reached
    assert network["refusals"] == []
    assert network["sent_bytes"] > 1000
    assert network["received_bytes"] > 100


async def test_hosts_that_are_not_listed_are_refused_in_every_way(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    port = internet.private_port
    found, network = await attempts(
        sandbox,
        trajectory,
        proxy='get("http://evil.example/", "evil.example")',
        tunnel='connect("evil.example:443")',
        below='connect("x.good.example:443")',
        above='connect("wild.example:80")',
        other_port='connect("good.example:22")',
        raw=f'connect("{PUBLIC}:443")',
        loopback=f'connect("127.0.0.1:{port}")',
        loopback_6=f'connect("[::1]:{port}")',
        mapped=f'connect("[::ffff:127.0.0.1]:{port}")',
        local=f'connect("localhost:{port}")',
        number=f'connect("2130706433:{port}")',
        metadata='connect("169.254.169.254:80")',
        direct_http='directly("1.2.3.4", 80, http("evil.example"))',
        direct_address=f'directly("{PUBLIC}", 80, http("{PUBLIC}"))',
        direct_tls='directly("1.2.3.4", 443, hello("evil.example"))',
        tls_without_name=f'directly("{PUBLIC}", 443, hello(None) if 0 else hello("evil.example"))',
        name='socket.getaddrinfo("evil.example", 80)',
        other='directly("1.2.3.4", 5432, b"x")',
        version_6='directly("2606:4700::1111", 443, hello("good.example"))',
    )
    refused = {name for name, text in found.items() if " 403 " in text or text == "" or text.startswith("error")}
    assert refused == set(found), found
    assert (internet.received, internet.private) == ([], [])
    assert ("evil.example", 443, "not_allowed") in reasons(network)
    assert ("evil.example", 53, "not_allowed") in reasons(network)
    assert "evil.example" not in internet.queries


async def test_listed_names_with_special_addresses_are_refused(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    found, network = await attempts(
        sandbox,
        trajectory,
        inner='connect("inner.example:443")',
        metadata='get("http://meta.example/latest", "meta.example")',
        mapped='connect("mapped.example:443")',
        direct='directly("1.2.3.4", 443, hello("inner.example"))',
        name='socket.getaddrinfo("inner.example", 443)',
        rebind_first='directly("rebind.example", 443, hello("rebind.example"))',
    )
    assert all(" 403 " in text or text == "" or text.startswith("error") for text in found.values()), found
    assert (internet.received, internet.private) == ([], [])
    assert {
        ("inner.example", 443, "loopback"),
        ("meta.example", 80, "link_local"),
        ("mapped.example", 443, "loopback"),
        ("rebind.example", 443, "loopback"),
    } <= reasons(network)


async def test_requests_that_name_another_host_are_refused(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    two = "GET / HTTP/1.1\\r\\nHost: good.example\\r\\nHost: evil.example\\r\\n\\r\\n"
    found, network = await attempts(
        sandbox,
        trajectory,
        sni='connect("good.example:443", hello("evil.example"))',
        tunnel_host='connect("good.example:80", http("evil.example"))',
        tunnel_h2='connect("good.example:80", b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")',
        tunnel_space='connect("good.example:80", b"\\r\\n" + http("evil.example"))',
        host='get("http://good.example/", "evil.example")',
        user='get("http://good.example@evil.example/", "good.example")',
        two=f'directly("1.2.3.4", 80, b"{two}")',
        folded='directly("1.2.3.4", 80, b"GET / HTTP/1.1\\r\\nHost: good.example\\r\\n evil\\r\\n\\r\\n")',
        url='directly("1.2.3.4", 80, b"GET http://evil.example/ HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")',
        old='directly("1.2.3.4", 80, b"GET /\\r\\n\\r\\n")',
    )
    assert not any("hello" in text or "tls" in text for text in found.values()), found
    assert all(each == b"" for each in internet.received)
    assert ("evil.example", 443, "name_mismatch") in reasons(network)
    assert ("evil.example", 80, "name_mismatch") in reasons(network)


async def test_second_request_of_a_connection_cannot_name_another_host(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    found, _ = await attempts(
        sandbox, trajectory, pipelined='directly("1.2.3.4", 80, http("good.example") + http("evil.example"))'
    )
    assert found["pipelined"].count("HTTP/1.1") == 1
    assert b"Connection: close" in internet.received[0]


async def test_redirect_to_another_host_is_refused(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    fetch = 'import urllib.request; print(urllib.request.urlopen("http://moved.example/away").read())'
    report = await sandbox.run(a_program(fetch, environment=trajectory))
    assert report.outcome == "user_error"
    assert b"403" in report.stderr.data
    assert ("evil.example", 80, "not_allowed") in reasons(report.network)
    assert len(internet.received) == 1


async def test_datagrams_leave_no_environment(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    send = f'socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("{PUBLIC}", {internet.udp_port}))'
    await attempts(sandbox, trajectory, send=send, again=send)
    found, _ = await attempts(sandbox, trajectory, after='connect("good.example:80")')
    assert "hello" in found["after"]
    assert internet.private == []


async def test_invalid_bytes_and_many_connections_harm_no_other_environment(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    flood = f"""{CLIENT}
import os
ends = []
for _ in range(300):
    try:
        ends.append(socket.create_connection(("127.0.0.1", 3128), 10))
    except OSError:
        break
for port in (3128, 80, 443):
    for size in (1, 40, 70_000):
        try:
            directly("127.0.0.1", port, os.urandom(size))
        except OSError:
            pass
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(2000):
    names.sendto(os.urandom(40), ("127.0.0.1", 53))
"""
    attack = await sandbox.run(a_program(flood, environment=trajectory))
    assert attack.outcome == "ok", attack
    assert attack.network is not None
    assert any(each["reason"] == "too_many" for each in attack.network["refusals"])
    other = an_environment(network=ALLOWED)
    found, network = await attempts(sandbox, other, get='get("http://good.example/", "good.example")')
    assert "hello" in found["get"]
    assert network["interruptions"] == 0
    await sandbox.destroy(other.id)


async def test_environment_without_network_reaches_nothing(sandbox: Bench, internet: SmallInternet) -> None:
    closed = an_environment()
    found, network = await attempts(
        sandbox,
        closed,
        proxy='get("http://good.example/", "good.example")',
        direct=f'directly("{PUBLIC}", 443, hello("good.example"))',
        name='socket.getaddrinfo("good.example", 80)',
    )
    assert all(text.startswith("error") for text in found.values()), found
    assert network is None
    await sandbox.destroy(closed.id)


async def test_network_of_an_action_ends_with_it(sandbox: Bench, internet: SmallInternet) -> None:
    environment = an_environment()
    fetch = f'{CLIENT}\nreport(get=lambda: get("http://good.example/", "good.example"))'
    for network, is_reached in ((ALLOWED, True), (None, False), ("open", True), ("none", False)):
        report = await sandbox.run(a_program(fetch, environment=environment, network=network))
        assert (b"hello" in report.stdout.data) is is_reached, report
    await sandbox.destroy(environment.id)


SERVE = "import os, socket\nserver = socket.create_server(('127.0.0.1', 3128))\n"
HOLD = f"""{CLIENT}
import sys
end = socket.create_connection(("127.0.0.1", 3128), 10)
end.sendall(b"GET http://good.example/hold HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")
data = b""
while b"held" not in data:
    data += end.recv(1000)
print("open", flush=True)
end.settimeout(None)
try:
    end.recv(1000)
except ConnectionError:
    pass
print("closed", flush=True)
while True:
    try:
        if "hello" in get("http://good.example/", "good.example"):
            break
    except OSError:
        pass
print("again", flush=True)
"""


async def follow(sandbox: Bench, fence: Any, text: bytes) -> None:
    """Wait until the attempt has printed the text."""
    seen = b""
    while text not in seen:
        output = await sandbox.executor.poll_output(fence, stdout=len(seen), stderr=0)
        assert output is not None
        assert not output.ended, output
        seen += output.stdout.data


async def test_policy_change_closes_and_opens_connections_of_a_running_program(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    program = a_program(HOLD, environment=trajectory)
    running = await sandbox.begin(program)
    await follow(sandbox, program.fence, b"open")
    await sandbox.executor.set_networks({trajectory.id: NetworkVersion(1, {"allow": ["odd.example:8443"]})})
    await follow(sandbox, program.fence, b"closed")
    await sandbox.executor.set_networks({trajectory.id: NetworkVersion(2, None)})
    await sandbox.executor.set_networks({trajectory.id: NetworkVersion(3, ALLOWED)})
    await sandbox.executor.set_networks({trajectory.id: NetworkVersion(2, None)})  # is late
    report = await running
    assert report.outcome == "ok", report
    assert report.stdout.data == b"open\nclosed\nagain\n"
    assert ("good.example", 80, "not_allowed") in reasons(report.network)


async def test_failure_of_the_egress_process_is_no_result_of_the_program(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    program = a_program(HOLD.partition('print("closed"')[0] + "sys.exit(3)", environment=trajectory)
    running = await sandbox.begin(program)
    await follow(sandbox, program.fence, b"open")
    os.kill(egress_of(sandbox), signal.SIGKILL)
    failed = await running
    assert (failed.outcome, failed.reason) == ("infra_error", "network_interrupted"), failed
    found, network = await attempts(sandbox, trajectory, get='get("http://good.example/", "good.example")')
    assert "hello" in found["get"]
    assert network["interruptions"] == 0


async def test_egress_process_has_no_rights(sandbox: Bench, trajectory: EnvironmentSpec) -> None:
    await attempts(sandbox, trajectory, get='get("http://good.example/", "good.example")')
    status = Path(f"/proc/{egress_of(sandbox)}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert "0" not in fields["Uid"].split()
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh")} == {0}
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Groups"].strip() == ""


async def test_own_server_on_a_port_of_the_proxy_is_reported(
    sandbox: Bench, trajectory: EnvironmentSpec, internet: SmallInternet
) -> None:
    closed = an_environment()
    serve = f"{SERVE}if os.fork(): os._exit(0)\nos.setsid()\nserver.accept()"
    left: ExecutionReport = await sandbox.run(a_program(serve, environment=closed))
    assert left.leftover_processes == 1
    report = await sandbox.run(a_command("sh", "-c", "echo $HTTP_PROXY", environment=closed, network=ALLOWED))
    assert report.stdout.data == b"\n"
    assert reasons(report.network) == {("127.0.0.1", 3128, "port_in_use")}
    await sandbox.destroy(closed.id)
