"""The network of one environment: opened for an attempt that needs it, changed while it lives, closed with it."""

import json
import os
import socket
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from arl_core.network.policy import NetworkPolicy
from arl_cpu.contract.executor import ExecSpec, ExecutionReport, NodeCapability
from arl_cpu.launcher.network.listeners import HTTP_PROXY, SOCKETS
from arl_cpu.launcher.sandbox.sandbox import Sandbox
from arl_cpu.launcher.sandbox.sandbox_host import SandboxHost

__all__ = ["EnvironmentNetwork", "network_capability"]

CAPABILITY_NAME = "network"
_NOT_PROXIED = "localhost,127.0.0.1,::1"
_MAX_ANSWER = 64 << 10
INTERRUPTED = "network_interrupted"
_LOST_MESSAGE = "the process that connects the environment to the network failed during the action"


class EnvironmentNetwork:
    """The network of one environment. It has sockets inside only while a policy allows something."""

    def __init__(self, host: SandboxHost, id: str, network: Any) -> None:
        self._host, self._id = host, id
        self._own: Any = network
        """Network of the environment, as JSON."""
        self._version = 0
        self._attempt_network: Any = None
        """Network of the running attempt, if it has its own."""
        self._sandbox: Sandbox | None = None
        """The sandbox, once an attempt has begun in it."""
        self._sockets: dict[str, int] = {}
        self._missing: list[str] = []
        """Sockets that could not be made because a program inside uses their ports."""
        self._channel: socket.socket | None = None
        self._on_opened: Callable[[str | None], None] | None = None
        self._is_used = False
        self._interruptions = 0

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of programs that use the proxy."""
        if "proxy" not in self._sockets:
            return {}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), HTTP_PROXY)
        return {**proxies, "NO_PROXY": _NOT_PROXIED, "no_proxy": _NOT_PROXIED}

    def begin(self, spec: ExecSpec, sandbox: Sandbox, on_ready: Callable[[str | None], None]) -> None:
        """Apply the network of an attempt. `on_ready` gets None once it is open, or the problem."""
        self._sandbox = sandbox
        if spec.environment.network_version >= self._version:
            self._version, self._own = spec.environment.network_version, spec.environment.network
        self._attempt_network = spec.network
        self._is_used, self._interruptions = not self._policy.is_closed, 0
        if self._policy.is_closed or self._sockets:
            self._apply()
            on_ready(None)
            return
        self._on_opened = on_ready
        if self._channel is None:
            self._open(sandbox)

    def set_own(self, version: int, network: Any) -> None:
        """Change the network of the environment. An attempt with its own network keeps it to its end."""
        if version <= self._version:
            return
        self._version, self._own = version, network
        if self._attempt_network is not None:
            return
        self._is_used = self._is_used or not self._policy.is_closed
        if self._policy.is_closed or self._sockets:
            self._apply()
        elif self._channel is None and self._sandbox is not None:
            self._open(self._sandbox)

    def finish(self, report: ExecutionReport, on_report: Callable[[ExecutionReport], None]) -> None:
        """Add the use of the network to the report of the attempt, and return to the environment's own network."""
        if not self._is_used:
            on_report(report)
            return
        used = _missing_sockets(self._missing)
        if self._host.egress.pid is None:
            self._interruptions += 1
        self._host.egress.take_usage(self._id, lambda usage: on_report(self._complete(report, usage, used)))
        self._attempt_network = None
        self._is_used = not self._policy.is_closed
        self._apply()

    def close(self) -> None:
        """Close everything. A socket that stays open would keep the namespace."""
        self._on_opened = None
        self._close_channel()
        self._close_sockets()
        self._host.egress.forget(self._id)

    def send_sockets(self) -> None:
        """Send the sockets and the policy to a new egress process."""
        names = list(self._sockets)
        message = {"op": "open", "environment": self._id, "policy": self._policy.to_json(), "sockets": names}
        self._host.egress.send(message, [self._sockets[name] for name in names])

    def interrupted(self) -> None:
        """Count a failure of the egress process."""
        self._interruptions += 1

    @property
    def _policy(self) -> NetworkPolicy:
        network = self._attempt_network if self._attempt_network is not None else self._own
        return NetworkPolicy.from_json(network)

    def _apply(self) -> None:
        if self._policy.is_closed:
            self._close_sockets()
        elif self._sockets:
            message = {"op": "policy", "environment": self._id, "policy": self._policy.to_json()}
            self._host.egress.send(message)

    def _open(self, sandbox: Sandbox) -> None:
        """Have a process make the sockets inside."""
        try:
            namespace = sandbox.open_network()
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._opened(f"the network of the environment could not be opened: {error}")
            return
        self._host.loop.watch(self._channel.fileno(), self._receive)
        try:
            self._host.zygote.fork_worker(theirs.detach(), namespace, {"op": "network"}, self._process_created)
        except OSError as error:
            self._opened(f"the network of the environment could not be opened: {error}")

    def _process_created(self, pid: int, error: str) -> None:
        if pid == 0:
            self._opened(f"the process for the network of the environment could not be created: {error}")
            return
        with suppress(ProcessLookupError):  # it has ended and is reaped already
            os.kill(pid, 0)
            self._host.workers[pid] = lambda _status: None

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            data, ancillary, _, _ = self._channel.recvmsg(
                _MAX_ANSWER, socket.CMSG_SPACE(len(SOCKETS) * array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            data, ancillary = b"", []
        files = array("i")
        for _, _, part in ancillary:
            files.frombytes(part[: len(part) - len(part) % files.itemsize])
        answer = json.loads(data) if data else {"error": "the process ended"}
        names = answer.get("sockets")
        if names is not None and len(names) == len(files):
            self._sockets = dict(zip(names, files, strict=True))
            self._missing = [each for each in SOCKETS if each not in names]
            self._opened(None)
            return
        for file in files:
            os.close(file)
        reason = answer.get("error", "too few descriptors are free")
        self._opened(f"the network of the environment could not be opened: {reason}")

    def _opened(self, problem: str | None) -> None:
        self._close_channel()
        if problem is None and not self._policy.is_closed:
            self._host.egress.add(self._id, self)
        elif self._sockets:
            self._close_sockets()
        callback, self._on_opened = self._on_opened, None
        if callback is not None:
            callback(problem)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._host.loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _close_sockets(self) -> None:
        self._host.egress.remove(self._id)
        for file in self._sockets.values():
            os.close(file)
        self._sockets = {}

    def _complete(
        self, report: ExecutionReport, usage: Mapping[str, Any] | None, missing: list[dict[str, Any]]
    ) -> ExecutionReport:
        found = dict(usage or {})
        failures = self._interruptions  # without an answer the use is unknown, which is no failure of the network
        found["refusals"] = [*missing, *found.get("refusals", [])]
        report = replace(report, network={**found, "interruptions": failures})
        if failures and report.outcome in ("user_error", "user_timeout"):
            return replace(report, outcome="infra_error", reason=INTERRUPTED, message=_LOST_MESSAGE)
        return report


def network_capability(host: SandboxHost) -> NodeCapability:
    """Return whether environments can have a network with a policy."""
    if host.driver.has_zygote_namespaces:
        mechanism = "sockets inside, served by an unprivileged process outside"
        return NodeCapability(name=CAPABILITY_NAME, level="enforced", mechanism=mechanism)
    reason = f"the {host.driver.name} driver has no network namespaces"
    return NodeCapability(
        name=CAPABILITY_NAME, level="absent", mechanism="none", reason=reason, fix="use the namespaces driver"
    )


def _missing_sockets(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return refusals for the sockets whose ports a program inside uses."""
    absent = [SOCKETS[name] for name in names]
    return [{"host": address, "port": port, "reason": "port_in_use", "count": 1} for _, address, port in absent]
