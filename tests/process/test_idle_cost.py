"""Test that an idle system needs almost no CPU time and few database statements."""

import asyncio
import os
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from support.machine import Machine, a_machine

MEASURED_S = 30.0
MOST_PER_MINUTE = 60
MOST_OF_A_CORE = 0.01
SLACK = 3
"""Factor on the allowed share of a core, so that measurement noise does not fail the test."""

STATEMENT = re.compile(r"^(\S+ \S+) UTC \[\d+\] (\S*)@\S* LOG:  (?:statement|execute [^:]*):\s*(.*)$", re.MULTILINE)
BEAT = "update node_beats"
TRANSACTION = ("begin", "commit", "rollback")


class StatementLog:
    """The statements in the Postgres log of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._path = machine.directory / "logs" / "postgres.log"

    def since(self, at: datetime) -> list[tuple[str, str]]:
        """Return role and statement of each entry, without heartbeats and transaction commands."""
        found = []
        for when, role, statement in STATEMENT.findall(self._path.read_text()):
            asked = statement.strip().lower()
            if datetime.fromisoformat(when) >= at and not asked.startswith((BEAT, *TRANSACTION)):
                found.append((role, asked[:60]))
        return found


async def log_every_statement(connection: asyncpg.Connection) -> None:
    """Log every statement, also for open sessions."""
    await connection.execute("alter system set log_statement = 'all'")
    await connection.execute("select pg_reload_conf()")


def now() -> datetime:
    """Return the current UTC time without a time zone, as the log prints it."""
    return datetime.now(UTC).replace(tzinfo=None)


def spent_s(pid: int) -> float:
    """Return the CPU time of a process and of its ended children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def spent_by_process(machine: Machine) -> dict[str, float]:
    """Return the CPU time of the supervisor and of each process tree below it."""
    status = machine.status()
    roots = {name: entry["pid"] for name, entry in status["processes"].items()}
    spent = {name: sum(map(spent_s, tree_of(pid))) for name, pid in roots.items()}
    return spent | {"supervisor": spent_s(status["supervisor"]["pid"])}


def tree_of(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pid}.union(*(tree_of(int(child)) for child in children))


async def until_quiet(log: StatementLog, *, quiet_s: float = 3.0) -> None:
    """Wait until the log shows no statements for `quiet_s`, which means that polls are at the idle interval."""
    async with asyncio.timeout(60):
        while log.since(now() - timedelta(seconds=quiet_s)):
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_idle_system_needs_few_statements_and_little_cpu_time(tmp_path: Path) -> None:
    with a_machine(tmp_path / "state") as machine:
        with machine.client() as client:
            assert client.run(task="t", argv=["true"], wait_timeout_s=30).outcome == "ok"
        log = StatementLog(machine)
        connection = await asyncpg.connect(EmbeddedPostgres(machine.directory).owner_url("tangram"))
        await log_every_statement(connection)
        await connection.close()
        await until_quiet(log)
        before, begun = spent_by_process(machine), now()
        await asyncio.sleep(MEASURED_S)  # the time measured, nothing is waited for
        asked = Counter(log.since(begun))
        after = spent_by_process(machine)
    per_minute = asked.total() * 60 / MEASURED_S
    shares = {name: (after[name] - before[name]) / MEASURED_S for name in after}
    print(f"{per_minute:.0f} statements a minute: {asked}; {sum(shares.values()):.2%} of a core: {shares}")
    assert 0 < per_minute <= MOST_PER_MINUTE, asked
    assert sum(shares.values()) < MOST_OF_A_CORE * SLACK, shares
