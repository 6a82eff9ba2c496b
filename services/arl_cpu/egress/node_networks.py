"""Networks of this node's environments: changes while they live, and refusals of those that cannot be enforced."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from arl_cpu.contract.executor import ExecSpec, ExecutionReport, Executor, NetworkVersion
from arl_kit.metrics import Metrics

__all__ = ["NodeNetworks", "missing_network_report"]

CAPABILITY_NAME = "network"


class NodeNetworks:
    """The changed networks that the executor knows, by environment, and the use of all networks."""

    def __init__(self, executor: Executor, metrics: Metrics) -> None:
        self._executor = executor
        self._bytes = metrics.counter("network_bytes", "Bytes between environments and other hosts", "direction")
        self._refusals = metrics.counter("network_refusals", "Refused targets of programs, by reason", "reason")
        self._sent: Mapping[UUID, NetworkVersion] = {}

    async def apply(self, networks: Mapping[UUID, NetworkVersion]) -> None:
        """Send the networks that have changed since the last call; the first call sends all of them."""
        changed = {id: each for id, each in networks.items() if self._sent.get(id) != each}
        if changed:
            await self._executor.set_networks(changed)
        self._sent = networks

    def count(self, report: ExecutionReport) -> None:
        """Count the use of the network by an attempt."""
        if (usage := report.network) is None:
            return
        self._bytes.labels("sent").inc(usage.get("sent_bytes", 0))
        self._bytes.labels("received").inc(usage.get("received_bytes", 0))
        for refusal in usage.get("refusals", ()):
            self._refusals.labels(refusal["reason"]).inc(refusal["count"])


def missing_network_report(spec: ExecSpec, *, enforced: frozenset[str] | set[str]) -> ExecutionReport | None:
    """Return the report of an attempt that needs a network on a node that enforces no policies."""
    if CAPABILITY_NAME in enforced or not any(_is_network(each) for each in (spec.network, spec.environment.network)):
        return None
    message = "network: this node cannot enforce network policies, as `network` of `tangram doctor` explains"
    return ExecutionReport(fence=spec.fence, outcome="infra_error", reason="not_enforced", message=message)


def _is_network(network: Any) -> bool:
    return network not in (None, "none")
