"""Test that a database belongs to one installation until another one takes it over explicitly."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from arl_store.logins import role_url
from arl_store.migrate import upgrade
from support.postgres import PASSWORDS, CloneDatabase, Databases

OTHERS = {service: f"another-{password}" for service, password in PASSWORDS.items()}


async def can_connect(owner_url: str, passwords: dict[str, str]) -> set[str]:
    """Return the services whose passwords the database accepts."""
    accepted = set()
    for service, password in passwords.items():
        try:
            connection = await asyncpg.connect(role_url(owner_url, service, password))
        except asyncpg.InvalidPasswordError:
            continue
        await connection.close()
        accepted.add(service)
    return accepted


async def test_second_installation_is_refused_and_the_first_keeps_its_passwords(
    database: str,
) -> None:
    with pytest.raises(RuntimeError, match=r"belongs to another installation.*--take-over"):
        await upgrade(database, OTHERS)
    assert await can_connect(database, PASSWORDS) == set(PASSWORDS)
    assert await can_connect(database, OTHERS) == set()


async def test_take_over_replaces_the_first_installation_and_its_passwords(database: str) -> None:
    await upgrade(database, OTHERS, take_over=True)
    assert (await can_connect(database, PASSWORDS), await can_connect(database, OTHERS)) == (set(), set(OTHERS))
    await upgrade(database, OTHERS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, PASSWORDS)


async def test_database_without_an_owner_belongs_to_the_upgrading_installation(
    database: str,
) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("delete from installation")
    await connection.close()
    await upgrade(database, OTHERS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, PASSWORDS)


async def test_service_added_by_a_later_version_keeps_the_installation(
    clone_database: CloneDatabase,
) -> None:
    database = await clone_database()
    earlier = {service: password for service, password in PASSWORDS.items() if service != "gpu"}
    await upgrade(database, earlier, take_over=True)
    await upgrade(database, PASSWORDS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, {**PASSWORDS, "gpu": "another"})


async def test_service_roles_cannot_read_the_installation_table(database: str) -> None:
    connection = await asyncpg.connect(role_url(database, "gateway", PASSWORDS["gateway"]))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("select * from installation")
    finally:
        await connection.close()


async def test_second_state_directory_is_refused_until_it_takes_over(databases: Databases, tmp_path: Path) -> None:
    database = await databases.empty("test_two_states")
    try:
        assert hand_out(database, tmp_path / "first").returncode == 0
        refused = hand_out(database, tmp_path / "second")
        assert refused.returncode == 1
        assert "belongs to another installation" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert hand_out(database, tmp_path / "second", "--take-over").returncode == 0
        assert hand_out(database, tmp_path / "second").returncode == 0
    finally:
        await databases.drop(database)


async def test_each_node_gets_its_own_role_and_keys(databases: Databases, tmp_path: Path) -> None:
    database = await databases.empty("test_own_secrets")
    try:
        done = hand_out(database, tmp_path, "--node=cpu:n1", "--node=cpu:n2", "--node=api:broker")
        assert done.returncode == 0, done.stderr
        names = {"gateway", "admission", "scheduler", "n1", "n2", "broker"}
        secrets = {name: secrets_in(tmp_path / "secrets" / name) for name in names}
        assert {path.name for path in (tmp_path / "secrets").iterdir()} == names
        assert len({each["database_url"] for each in secrets.values()}) == len(names)
        assert secrets["n1"]["caller_keys"] != secrets["n2"]["caller_keys"]
        assert json.loads(secrets["n1"]["caller_keys"]).keys() == {"scheduler", "gateway"}
        for each in secrets.values():
            connection = await asyncpg.connect(each["database_url"])
            await connection.close()
        before = secrets["n1"]
        assert hand_out(database, tmp_path, "--node=cpu:n1", "--group-readable").returncode == 0
        assert secrets_in(tmp_path / "secrets" / "n1", mode=0o640) == before
    finally:
        await databases.drop(database)


@pytest.mark.parametrize("node", ["n1", "disk:n1", "cpu:", "cpu:a/b", "cpu:..", "cpu:gateway", f"cpu:{'n' * 129}"])
def test_invalid_node_is_refused_before_anything_is_written(tmp_path: Path, node: str) -> None:
    refused = hand_out("postgresql://nowhere", tmp_path, f"--node={node}")
    assert (refused.returncode, "Traceback" in refused.stderr, list(tmp_path.iterdir())) == (1, False, [])
    assert node in refused.stderr


def secrets_in(directory: Path, *, mode: int = 0o600) -> dict[str, str]:
    """Return the secret settings in a directory by name; check that nobody else can read them."""
    paths = list(directory.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {mode}
    return {path.name.removeprefix("tangram_"): path.read_text() for path in paths}


def hand_out(database: str, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the provisioning command as a deployment does."""
    return subprocess.run(
        [sys.executable, "-m", "arl_local.provision", "--state", state, "--to", state / "secrets", *options],
        env={**os.environ, "TANGRAM_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
