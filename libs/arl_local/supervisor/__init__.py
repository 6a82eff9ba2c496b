"""Supervision of processes on one machine: started in order, restarted when they die, drained at the end.

Nothing outlives the supervisor: the kernel kills its children when it ends, even by SIGKILL.
"""

from arl_local.supervisor.spec import ProcessSpec, restart_delay_s
from arl_local.supervisor.supervisor import StartFailed, Supervisor

__all__ = ["ProcessSpec", "StartFailed", "Supervisor", "restart_delay_s"]
