"""Test actions that exhaust the kernel's limit of files in flight on sockets."""

from dataclasses import replace

from support.sandbox import Bench, a_program


async def test_exhausted_in_flight_files_are_a_user_error(sandbox: Bench) -> None:
    source = """
import array, os, resource, socket, sys
open("done", "w").write("x")
most, pairs = resource.getrlimit(resource.RLIMIT_NOFILE)[0], []
file = array.array("i", [os.open("done", os.O_RDONLY)] * 250)
try:
    for _ in range(most // 250 + 8):
        pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
        pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, file)])
except OSError:
    pass
if os.fork() == 0:
    import time
    time.sleep(60)
os._exit(1)
"""
    report = await sandbox.run(replace(a_program(source), fetch=("done",)))
    assert report.outcome == "user_error", report
