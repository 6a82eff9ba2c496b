"""Test that the agent leaves no process behind if its launcher dies while the agent reports."""

import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from arl_cpu.launcher.agent.agent_request import AgentRequest
from arl_cpu.launcher.isolation.isolation import AgentSetup
from arl_cpu.launcher.linux.packet_channel import PacketChannel
from support.conditions import eventually, is_running

AN_AGENT = """
import sys
from arl_cpu.launcher.agent.agent import run_agent
from arl_cpu.launcher.isolation.unsafe_local import UnsafeLocalIsolation
run_agent(int(sys.argv[1]), UnsafeLocalIsolation())
"""
"""Runs without isolation, because with it the kernel itself kills the remaining processes."""


async def test_launcher_that_dies_during_a_start_leaves_no_process(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told = tmp_path / "pid"
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", AN_AGENT, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    with process:
        with ours:
            launcher = PacketChannel(ours)
            launcher.send({"op": "prepare", "base_prefix": sys.base_prefix})
            assert launcher.receive() == ({"op": "prepared"}, [])
            launcher.send({"op": "bind", **asdict(a_setup(tmp_path))})
            assert launcher.receive() == ({"op": "ready"}, [])
            order = AgentRequest(
                mode="run",
                argv=("sh", "-c", f"echo $$ > {told}.new && mv {told}.new {told}; exec sleep 600"),
                env={"PATH": os.environ["PATH"]},
                cwd=str(tmp_path),
            )
            null = os.open(os.devnull, os.O_RDWR)
            ours.shutdown(socket.SHUT_RD)  # what the agent says from here on breaks
            launcher.send({"op": "start"}, [order.pack(), null, null, null])
            os.close(null)
            process.wait(15)
        await eventually(lambda: not told.exists() or not is_running(int(told.read_text())))


def a_setup(workspace: Path) -> AgentSetup:
    return AgentSetup(
        workspace=str(workspace),
        home=str(workspace),
        base_prefix=sys.base_prefix,
        memory_mib=256,
        disk_mib=64,
        pids=64,
        keeps_processes=True,
        has_cgroup=False,
        watches_memory=False,
    )
