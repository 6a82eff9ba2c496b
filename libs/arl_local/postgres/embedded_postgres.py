"""An embedded PostgreSQL 18: its files, its start after any kind of end, its readiness.

The starter of the server process (a supervisor, or `run_server` in tests) is its direct parent. It is the only starter
for its directory: it has locked or created the directory.
"""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import asyncpg

from arl_kit.child_process import UnixAccount, spawn, wait_for_exit
from arl_local.postgres.named_user import named_user_hook
from arl_local.postgres.postgres_paths import ROOT_BASE_DIR, EmbeddedPostgresError, PostgresPaths, binaries_for
from arl_local.postgres.stale_processes import kill_processes, remove_shared_memory, server_processes
from arl_store.files import replace_file

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "create_database", "run_server"]

_OWNER = "tangram"
_PORT = 5432
_MAJOR = "18"
_POLL_S = 0.02

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "fsync": "on",
    "synchronous_commit": "on",
    # Only heartbeats of nodes rely on the WAL writer, and may lose 3 s. By default it wakes five times per second.
    "wal_writer_delay": "1s",
    "full_page_writes": "on",
    "jit": "off",
    "io_method": "sync",
    # In the data directory, so that no file remains in /dev/shm, which is small in containers.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}


class EmbeddedPostgres:
    """A PostgreSQL server for one state directory, reachable over a private Unix socket only."""

    def __init__(
        self, state_dir: Path, *, settings: Mapping[str, str] | None = None, root_base_dir: Path = ROOT_BASE_DIR
    ) -> None:
        """Create a server. `settings` override its own by name; `root_base_dir` has the files of root's servers."""
        self.paths = PostgresPaths.for_state_dir(state_dir, root_base_dir=root_base_dir)
        self._settings = {**_SETTINGS, **(settings or {}), "unix_socket_directories": str(self.paths.sockets)}
        if self.paths.client_group is not None:
            # The directory admits only the services' group, to which the socket's owner does not belong.
            self._settings["unix_socket_permissions"] = "0777"

    @property
    def account(self) -> UnixAccount | None:
        """Return the account that the server must run as; None is the caller's."""
        return self.paths.account

    @property
    def socket(self) -> Path:
        """Return the path of the socket."""
        return self.paths.sockets / f".s.PGSQL.{_PORT}"

    @property
    def env(self) -> dict[str, str]:
        """Return all environment variables of the server."""
        return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

    def prepare(self) -> None:
        """Create the data directory once and rewrite the configuration. It may be interrupted at any point."""
        self.paths.create()
        if not self.paths.data.exists():
            self._initialise()
        version = (self.paths.data / "PG_VERSION").read_text().strip()
        if version != _MAJOR:
            raise EmbeddedPostgresError(f"{self.paths.data} belongs to PostgreSQL {version}; installed is {_MAJOR}")
        replace_file(self.paths.hba_file, "local all all scram-sha-256\n", mode=0o644)
        settings = {**self._settings, "hba_file": str(self.paths.hba_file)}
        lines = [f"{name} = {_quote_setting(value)}\n" for name, value in settings.items()]
        replace_file(self.paths.config_file, "".join(lines), mode=0o644)

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        postgres = binaries_for(self.paths) / "postgres"
        return [str(postgres), "-D", str(self.paths.data), "-c", f"config_file={self.paths.config_file}"]

    async def before_start(self, *, grace_s: float = 1.0) -> None:
        """Wait until the processes of an earlier server end, and remove its stale files.

        Backends exit when they notice that their postmaster has ended. Those still busy in a statement after `grace_s`
        seconds are killed: the WAL makes that safe, and no client reads their results.
        """
        deadline = time.monotonic() + grace_s
        while remains := server_processes(self.paths.data):
            if time.monotonic() > deadline:
                kill_processes(remains)
            await asyncio.sleep(_POLL_S)
        remove_shared_memory(self.paths.data)
        # Another process may have the pid in these files by now, and the server would refuse to start.
        (self.paths.data / "postmaster.pid").unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        self.socket.with_name(f"{self.socket.name}.lock").unlink(missing_ok=True)

    async def is_ready(self) -> bool:
        """Return True if the server answers a query; False while it starts or recovers."""
        try:
            connection = await asyncpg.connect(self.owner_url("postgres"), timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await connection.close()
        return True

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return when the server answers queries. After a crash this includes recovery."""
        async with asyncio.timeout(timeout_s):
            while True:
                if await self.is_ready():
                    return
                await asyncio.sleep(_POLL_S)

    def owner_url(self, database: str) -> str:
        """Return the superuser's URL of one database of this server."""
        password = self.paths.password_file.read_text()
        return (
            f"postgresql://{_OWNER}:{quote(password)}@/{quote(database, safe='')}?host={quote(str(self.paths.sockets))}"
        )

    def purge(self) -> None:
        """Remove all files and shared memory of the server. It must have stopped."""
        if server_processes(self.paths.data):
            raise EmbeddedPostgresError(f"A server is still running in {self.paths.data}. Stop it first")
        remove_shared_memory(self.paths.data)
        self.paths.remove()

    def _initialise(self) -> None:
        unfinished = self.paths.unfinished_data
        while remains := server_processes(unfinished):
            kill_processes(remains)
            time.sleep(_POLL_S)
        remove_shared_memory(unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)
        password = secrets.token_urlsafe(24)
        replace_file(self.paths.password_file, password, mode=0o600)
        unfinished.mkdir(mode=0o700)
        if self.account:
            os.chown(unfinished, self.account.uid, self.account.gid)
        self._run_initdb(unfinished, password)
        unfinished.rename(self.paths.data)

    def _run_initdb(self, data: Path, password: str) -> None:
        durable = self._settings["fsync"] == "on"
        with (
            tempfile.NamedTemporaryFile("w", dir=self.paths.root, prefix="pw-") as password_file,
            tempfile.TemporaryFile() as output,
        ):
            password_file.write(password)
            password_file.flush()
            if self.account:
                os.chown(password_file.name, self.account.uid, self.account.gid)
            initdb = spawn(
                [
                    *(str(binaries_for(self.paths) / "initdb"), "-D", str(data), "-U", _OWNER),
                    *(f"--pwfile={password_file.name}", "--auth=scram-sha-256", "--no-instructions"),
                    *("--encoding=UTF8", "--locale-provider=builtin", "--locale=C", "--builtin-locale=C.UTF-8"),
                    *(() if durable else ("--no-sync",)),
                ],
                env=self.env,
                output=output,
                account=self.account,
                before_exec=named_user_hook(),
            )
            if initdb.wait() != 0:
                output.seek(0)
                raise EmbeddedPostgresError(f"initdb failed: {output.read().decode(errors='replace').strip()}")


@asynccontextmanager
async def run_server(
    state_dir: Path, *, settings: Mapping[str, str] | None = None, root_base_dir: Path = ROOT_BASE_DIR
) -> AsyncIterator[EmbeddedPostgres]:
    """Run a ready server during the block. Its files remain; its log is `postgres.log` in the same directory."""
    server = EmbeddedPostgres(state_dir, settings=settings, root_base_dir=root_base_dir)
    server.prepare()
    await server.before_start()
    with (server.paths.root / "postgres.log").open("ab") as log:
        process = spawn(server.command(), env=server.env, output=log, account=server.account)
    try:
        await _wait_ready_or_exit(server, process)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            await wait_for_exit(process)
            process.wait()


async def create_database(owner_url: str, name: str) -> None:
    """Create the database if it is missing."""
    connection = await asyncpg.connect(owner_url)
    try:
        with suppress(asyncpg.DuplicateDatabaseError):
            await connection.execute(f'CREATE DATABASE "{name.replace(chr(34), chr(34) * 2)}"')
    finally:
        await connection.close()


def _quote_setting(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


async def _wait_ready_or_exit(server: EmbeddedPostgres, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.TaskGroup() as tasks:
        end = tasks.create_task(wait_for_exit(process))
        ready = tasks.create_task(server.wait_ready())
        await asyncio.wait((end, ready), return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        ready.cancel()
    if process.poll() is not None:
        raise EmbeddedPostgresError(f"PostgreSQL did not start; see {server.paths.root / 'postgres.log'}")
