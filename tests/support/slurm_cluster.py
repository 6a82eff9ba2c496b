"""A Slurm cluster on this machine: munged, slurmctld and several slurmd, each with files and ports of its own."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PARTITION", "SLURM_PROGRAMS", "SlurmCluster", "a_slurm_cluster", "missing_programs"]

SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
PARTITION = "actions"
START_S = 30.0
# Slurm ends what a job left after KillWait. The timers are short, so that a test does not wait for them.
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={port}
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdSpoolDir={directory}/spool-%n
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdLogFile={directory}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
MinJobAge=10
KillWait=5
InactiveLimit=0
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed."""
    return [name for name in SLURM_PROGRAMS if _program(name) is None]


@dataclass
class SlurmCluster:
    """The cluster. Its daemons run in the foreground, as children of the test."""

    directory: Path
    names: tuple[str, ...]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.directory / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """Return the environment of daemons and commands."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TANGRAM_"))}
        return kept | {"SLURM_CONF": str(self.config)}

    def start(self) -> None:
        """Start all daemons, and wait until the Slurm nodes are idle."""
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        # The directory of the socket belongs to this user and not to `munge`, so munged needs --force.
        files = {"key-file": key, "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        options = [f"--{option}={self.directory / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", f"--socket={self.directory / 'munge.socket'}", *options)
        self._until(lambda: (self.directory / "munge.socket").exists(), "munged")
        self._write_config()
        self.start_controller()
        for name in self.names:
            self.start_slurmd(name)
        self._until(lambda: self.run("sinfo", "-h", "-o", "%D %T") == f"{len(self.names)} idle\n", "slurmd")

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-f", str(self.config))

    def start_slurmd(self, name: str) -> None:
        self._start("slurmd", "-D", "-N", name, "-f", str(self.config), key=name)

    def kill(self, key: str) -> None:
        """Kill a daemon by its name, or the slurmd of a Slurm node."""
        daemon = self.daemons.pop(key)
        daemon.kill()
        daemon.wait()

    def run(self, *argv: str) -> str:
        """Run a command of Slurm, and return its output."""
        done = subprocess.run(argv, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout if done.returncode == 0 else f"{done.stdout}{done.stderr}"

    def stop(self) -> None:
        """Cancel all jobs, and stop the daemons."""
        with suppress(subprocess.SubprocessError):
            self.run("scancel", "--partition", PARTITION)
            deadline = time.monotonic() + START_S
            while self.run("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.1)
        for key in reversed(list(self.daemons)):
            self.kill(key)

    def _write_config(self) -> None:
        ports = _free_ports(1 + len(self.names))
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
            for name, port in zip(self.names, ports[1:], strict=True)
        )
        values = {"host": host, "user": getpass.getuser(), "directory": self.directory, "port": ports[0]}
        self.config.write_text(_CONFIG.format(**values, nodes=nodes, partition=PARTITION))
        (self.directory / "state").mkdir()

    def _start(self, program: str, *options: str, key: str | None = None) -> None:
        with (self.directory / f"{key or program}.out").open("ab") as output:
            self.daemons[key or program] = subprocess.Popen(
                [str(_program(program)), *options],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _until(self, holds: Callable[[], bool], program: str) -> None:
        deadline = time.monotonic() + START_S
        while not holds():
            ended = [key for key, daemon in self.daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.directory.glob("*.out"))
                raise AssertionError(f"{program} did not start; ended: {ended}\n{logs}")
            time.sleep(0.05)


@contextmanager
def a_slurm_cluster(nodes: int) -> Iterator[SlurmCluster]:
    """Start a cluster, and stop it at the end. Meanwhile, commands of this process use it (SLURM_CONF)."""
    directory = Path(tempfile.mkdtemp(prefix="tslurm-", dir="/tmp"))
    directory.chmod(0o755)
    cluster = SlurmCluster(directory, tuple(f"slurm{number}" for number in range(1, nodes + 1)))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.config)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(directory, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
