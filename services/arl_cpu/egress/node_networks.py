"""Networks of this node's environments: changes while they live, and refusals of those that cannot be enforced."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from arl_cpu.contract.executor import ExecSpec, ExecutionReport, Executor

__all__ = ["NodeNetworks", "missing_network_report"]

CAPABILITY_NAME = "network"
_UNKNOWN = object()
"""Network of an environment of an earlier manager. It differs from every network, so the first poll sends it."""


class NodeNetworks:
    """The networks that the executor has, by environment. Those without an entry have none."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._sent: dict[UUID, Any] = {}

    def adopt(self, environments: Iterable[UUID]) -> None:
        """Set the environments of the executor, whose networks may have changed meanwhile."""
        self._sent = dict.fromkeys(environments, _UNKNOWN)

    async def apply(self, networks: Mapping[UUID, Any]) -> None:
        """Send the networks that have changed since the last call."""
        changed = {id: networks.get(id) for id in {*networks, *self._sent} if self._sent.get(id) != networks.get(id)}
        if changed:
            await self._executor.set_networks(changed)
            self._sent = dict(networks)


def missing_network_report(spec: ExecSpec, *, enforced: frozenset[str] | set[str]) -> ExecutionReport | None:
    """Return the report of an attempt that needs a network on a node that enforces no policies."""
    if CAPABILITY_NAME in enforced or not any(_is_network(each) for each in (spec.network, spec.environment.network)):
        return None
    message = "network: this node cannot enforce network policies, as `network` of `tangram doctor` explains"
    return ExecutionReport(fence=spec.fence, outcome="infra_error", reason="not_enforced", message=message)


def _is_network(network: Any) -> bool:
    return network not in (None, "none")
