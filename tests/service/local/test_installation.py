"""A database belongs to one installation, whose services nobody locks out unasked."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from arl_store.migrate import role_url, upgrade
from support.postgres import PASSWORDS, CloneDatabase, Databases

OTHERS = {service: f"another-{password}" for service, password in PASSWORDS.items()}


async def can_connect(owner_url: str, passwords: dict[str, str]) -> set[str]:
    """The services whose passwords are accepted."""
    accepted = set()
    for service, password in passwords.items():
        try:
            connection = await asyncpg.connect(role_url(owner_url, service, password))
        except asyncpg.InvalidPasswordError:
            continue
        await connection.close()
        accepted.add(service)
    return accepted


async def test_another_installation_is_refused_and_the_passwords_of_the_first_go_on_being_right(
    database: str,
) -> None:
    with pytest.raises(RuntimeError, match=r"belongs to another installation.*--take-over"):
        await upgrade(database, OTHERS)
    assert await can_connect(database, PASSWORDS) == set(PASSWORDS)
    assert await can_connect(database, OTHERS) == set()


async def test_one_that_takes_over_locks_the_first_out_and_is_at_home_from_then_on(database: str) -> None:
    await upgrade(database, OTHERS, take_over=True)
    assert (await can_connect(database, PASSWORDS), await can_connect(database, OTHERS)) == (set(), set(OTHERS))
    await upgrade(database, OTHERS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, PASSWORDS)


async def test_a_database_of_a_version_that_did_not_say_whose_it_was_belongs_to_whoever_upgrades_it(
    database: str,
) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("delete from installation")
    await connection.close()
    await upgrade(database, OTHERS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, PASSWORDS)


async def test_a_service_that_a_later_version_adds_makes_no_other_installation_of_it(
    clone_database: CloneDatabase,
) -> None:
    database = await clone_database()
    earlier = {service: password for service, password in PASSWORDS.items() if service != "gpu"}
    await upgrade(database, earlier, take_over=True)
    await upgrade(database, PASSWORDS)
    with pytest.raises(RuntimeError, match="another installation"):
        await upgrade(database, {**PASSWORDS, "gpu": "another"})


async def test_no_service_reads_whose_the_database_is(database: str) -> None:
    connection = await asyncpg.connect(role_url(database, "gateway", PASSWORDS["gateway"]))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("select * from installation")
    finally:
        await connection.close()


async def test_a_second_state_directory_is_told_what_to_do_and_takes_over_if_it_is_asked_to(
    databases: Databases, tmp_path: Path
) -> None:
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


def hand_out(database: str, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """As a deployment runs it."""
    return subprocess.run(
        [sys.executable, "-m", "arl_local.provision", "--state", state, "--to", state / "secrets", *options],
        env={**os.environ, "TANGRAM_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
