"""Test that a process search finds descendants whose parent dies during the search."""

import subprocess
import sys

A_LOOK = """
import os, signal, subprocess
from arl_cpu.launcher.linux import processes, syscalls

syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
parent = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
child = int(parent.stdout.readline())
everyone = processes.all_processes

def one_that_dies_before_it_is_seen():
    yield from [each for each in everyone() if each.pid == child]
    parent.kill()
    parent.wait()
    yield from (each for each in everyone() if each.pid != child)

processes.all_processes = one_that_dies_before_it_is_seen
found = [each.pid for each in processes.descendants(os.getpid())]
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(child in found, parent.pid in found, len(found))
"""


def test_descendants_include_a_child_whose_parent_dies_during_the_search() -> None:
    told = subprocess.run([sys.executable, "-c", A_LOOK], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == ["True", "False", "1"]
