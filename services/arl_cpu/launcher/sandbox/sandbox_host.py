"""The state that all sandboxes of a launcher share, and the interfaces to the owner and the workers of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from arl_cpu.launcher.agent.native import PYTHON
from arl_cpu.launcher.isolation import unsafe_local
from arl_cpu.launcher.isolation.drivers import IsolationDriver
from arl_cpu.launcher.linux.cgroups import CgroupTree
from arl_cpu.launcher.linux.event_loop import EventLoop
from arl_cpu.launcher.linux.id_ranges import IdRanges
from arl_cpu.launcher.network.egress_process import EgressProcess
from arl_cpu.launcher.sandbox.zygote import Zygote
from arl_cpu.templates.template_store import TemplateStore

__all__ = ["ReapedSandbox", "SandboxHost", "SandboxOwner", "SandboxWorker"]

_STRAYS_RETRY_S = 0.05


class ReapedSandbox(Protocol):
    """A sandbox whose first process may end."""

    def reaped(self) -> None:
        """Handle that its pid 1 was reaped."""
        ...


@dataclass(kw_only=True)
class SandboxHost:
    """The state that all environments of this launcher share."""

    loop: EventLoop
    zygote: Zygote
    cgroup_tree: CgroupTree | None
    driver: IsolationDriver
    first_host_id: int | None
    """First of a range of unused uids, one for each environment. None: only the launcher's uid is usable."""
    id_ranges: IdRanges | None = None
    """Ranges of ids, one for each environment. None: an environment has one user."""
    work_dir: Path
    base_prefix: str
    templates: TemplateStore | None = None
    agent_kind: str = PYTHON
    """Implementation of the agent."""
    sandboxes: dict[int, ReapedSandbox] = field(default_factory=dict)
    workers: dict[int, Callable[[int], None]] = field(default_factory=dict)
    """Callbacks for the exit status of file workers and of other processes of the launcher, by pid."""
    enforcement: Mapping[str, str] = field(default_factory=dict)
    used_numbers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The uid is below those of the environments, and the process may do nothing that another user may not.
        uid = self.first_host_id - 1 if self.first_host_id is not None else None
        self.egress = EgressProcess(self.loop, self.workers, uid)

    @property
    def ready_file(self) -> Path:
        """Path of the file that lists prepared sandboxes, for tools on this machine."""
        return self.work_dir.with_name("ready")

    def take_number(self) -> int:
        """Return the smallest free number. It determines cgroup, directory and uid of an environment."""
        number = next(each for each in range(len(self.used_numbers) + 1) if each not in self.used_numbers)
        self.used_numbers.add(number)
        return number

    def kill_strays(self) -> None:
        """Kill processes that lost their agent. Wait while agents are forked: they look the same until their pid is
        known.
        """
        if self.zygote.is_idle:
            unsafe_local.kill_strays(excluded_pids={self.zygote.pid, *self.sandboxes, *self.workers})
        else:
            self.loop.call_later(_STRAYS_RETRY_S, self.kill_strays)


class SandboxOwner(Protocol):
    """The owner of a sandbox, notified of its state changes."""

    def created(self) -> None:
        """Handle the start of the agent."""
        ...

    def prepared(self) -> None:
        """Handle that the sandbox is ready for its sizes."""
        ...

    def message_received(self, message: dict[str, Any], files: list[int]) -> None:
        """Handle any other message of the agent."""
        ...

    def failed(self, message: str) -> None:
        """Handle a failure. The owner must end the sandbox."""
        ...

    def died(self) -> None:
        """Handle the end of pid 1, after which the kernel has ended all other processes in it."""
        ...


class SandboxWorker(Protocol):
    """A worker on the files of a sandbox, killed before the sandbox is removed."""

    def kill(self) -> None:
        """Kill the worker. It ends soon and is then removed from the sandbox."""
        ...
