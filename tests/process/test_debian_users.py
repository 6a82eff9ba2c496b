"""Root and other users inside an environment of a real Debian: packages, accounts, su and sudo."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from support.container_image import MIRROR, RELEASE, unreachable_mirror
from support.machine import Machine, a_machine
from support.sandbox import HAS_USERS

TEMPLATE = "debian"
CONTROL = "Package: local-greeting\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a greeting\n"
BUILD_TIMEOUT_S = 600

pytestmark = [
    pytest.mark.slow,
    HAS_USERS,
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="not installed: debootstrap"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if reason := unreachable_mirror():
        pytest.skip(reason)
    tree = tmp_path_factory.mktemp("debian") / "tree"
    command = ("debootstrap", "--variant=minbase", "--include=sudo,adduser", RELEASE, str(tree), MIRROR)
    subprocess.run(command, capture_output=True, check=True, timeout=BUILD_TIMEOUT_S)
    with a_machine(tmp_path_factory.mktemp("users") / "state") as machine:
        machine.cli("templates", "import", str(tree), "--name", TEMPLATE)
        shutil.rmtree(tree)
        yield machine


def run(machine: Machine, script: str, *, user: str = "root") -> str:
    where = ("--task", "debian", "--trajectory", "users", "--template", TEMPLATE, "--memory-mib", "512")
    return machine.cli("submit", *where, "--user", user, "--", "sh", "-c", script).stdout


def test_root_adds_users_who_become_root_with_sudo(machine: Machine) -> None:
    run(machine, "useradd -m -s /bin/sh alice; echo 'alice ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/alice")
    assert run(machine, 'su alice -c "id -un; touch /home/alice/own; stat -c %U /home/alice/own"') == "alice\nalice\n"
    assert run(machine, "id -un; sudo -n id -un", user="alice") == "alice\nroot\n"
    run(machine, "adduser --quiet --disabled-password --gecos x bob")
    assert run(machine, "chown bob: /srv; stat -c %U /srv") == "bob\n"


def test_apt_installs_a_local_package(machine: Machine) -> None:
    run(machine, f"mkdir -p p/DEBIAN p/usr/share/greeting; printf '{CONTROL}' > p/DEBIAN/control; chmod -R 755 p")
    run(machine, "echo hello > p/usr/share/greeting/text; dpkg-deb -b p /tmp/greeting.deb")
    run(machine, "DEBIAN_FRONTEND=noninteractive apt-get install -y /tmp/greeting.deb")
    assert run(machine, "cat /usr/share/greeting/text; dpkg -s local-greeting | grep Status", user="65534") == (
        "hello\nStatus: install ok installed\n"
    )


def test_root_inside_changes_nothing_outside(machine: Machine) -> None:
    refused = run(
        machine,
        "mount -t tmpfs x /mnt 2>&1; mknod /tmp/d b 8 0 2>&1; cat /proc/1/environ 2>&1; unshare -m true 2>&1; true",
    )
    assert len(refused.splitlines()) >= 4
    assert refused.count("denied") + refused.count("not permitted") == 4
