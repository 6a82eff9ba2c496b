"""Pulls of the images that queued actions need: the leader requests them, and settles actions whose image fails."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from arl_core.capacity.ledger import fits
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.capacity.walltime import is_suited
from arl_core.domain.model import ActionClass, NodeResources
from arl_core.domain.states import ActionOutcome
from arl_core.images.pull_planning import (
    PULLS_IMAGES,
    ImageDemand,
    PullCandidate,
    PullDecision,
    decide_pull,
    expected_pull_s,
)
from arl_kit.service_client import ServiceClient
from arl_scheduler.index.image_table import WantedImage, wanted_images
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.leader.notification_inbox import notify_changed_rows
from arl_scheduler.queries import image_queries, leader_queries
from arl_scheduler.queries.image_queries import MissingLayers
from arl_scheduler.queries.leader_queries import TermLostError
from arl_scheduler.queries.poll_result import required_templates
from arl_store.tx import PostgresStore

__all__ = ["ImageCoordinator"]

MAX_FOLLOWERS = 1000
"""Actions of one environment that settle with its first action."""

log = logging.getLogger(__name__)


class ImageCoordinator:
    """The part of the leader that decides about images, once after each poll."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, election: LeaderElection) -> None:
        self._store, self._peers, self._election = store, peers, election

    async def update(
        self, index: SchedulerIndex, snapshot: CellSnapshot
    ) -> dict[UUID, tuple[ActionOutcome, str | None]]:
        """Request pulls. Return the actions to settle, because their image cannot be pulled."""
        wanted = wanted_images(snapshot.queue)
        if not wanted:
            return {}
        nodes = {name: _able_nodes(entry.cls, snapshot.nodes) for name, entry in wanted.items()}
        missing = await self._measure_missing(wanted, {node for able in nodes.values() for node in able})
        pulls: list[tuple[int, str]] = []
        due: dict[UUID, tuple[ActionOutcome, str | None]] = {}
        for name, entry in wanted.items():
            decision = self._decide(index, name, entry, nodes[name], missing, now=snapshot.now)
            if decision.node is not None:
                pulls.append((decision.node, name))
            elif decision.failure is not None:
                due |= _failed_actions(index, entry, decision)
        if pulls:
            await self._request(index, pulls)
        return due

    def _decide(
        self,
        index: SchedulerIndex,
        name: str,
        entry: WantedImage,
        nodes: Mapping[int, NodeResources],
        missing: MissingLayers,
        *,
        now: float,
    ) -> PullDecision:
        copies = index.images.copies(name)
        ready = {copy.node for copy in copies if copy.state == "ready"}
        minimum = entry.cls.demand.minimum
        candidates = [
            PullCandidate(
                node=id,
                has_room=fits(minimum, node.available),
                free_milli=node.available.get("cpu_milli", 0),
                pull_s=0.0 if id in ready else expected_pull_s(missing.bytes.get((name, id)), missing.bytes_per_s),
            )
            for id, node in nodes.items()
        ]
        return decide_pull(ImageDemand(oldest_submitted=entry.oldest_submitted), copies, candidates, now=now)

    async def _measure_missing(self, names: Mapping[str, WantedImage], nodes: set[int]) -> MissingLayers:
        """Return what nodes lack. With one node there is nothing to choose."""
        if len(nodes) <= 1:
            return MissingLayers({})
        async with self._store.read() as tx:
            return await image_queries.measure_missing(tx, names.keys(), nodes)

    async def _request(self, index: SchedulerIndex, pulls: list[tuple[int, str]]) -> None:
        if self._election.term is None:
            raise TermLostError
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=self._election.cell, term=self._election.term)
            await image_queries.request_pulls(tx, pulls)
        for node, name in pulls:
            log.info("requested image %s on node %s", name, index.nodes[node].name)
        notify_changed_rows(self._peers, index.nodes, {node for node, _ in pulls})


def _able_nodes(cls: ActionClass, nodes: Mapping[int, NodeResources]) -> dict[int, NodeResources]:
    """Return the nodes that could run an action of the class if they had its image."""
    other = replace(cls, requires=cls.requires - required_templates(cls) | {PULLS_IMAGES})
    return {
        id: node
        for id, node in nodes.items()
        if node.is_schedulable and is_suited(other, node) and fits(cls.demand.minimum, node.capacity)
    }


def _failed_actions(
    index: SchedulerIndex, entry: WantedImage, decision: PullDecision
) -> dict[UUID, tuple[ActionOutcome, str | None]]:
    """Return the actions of an image that cannot be pulled, and those that wait for the environments of these."""
    ids: set[UUID] = set()
    for action in entry.actions():
        if action.submitted > decision.fails_until:
            continue
        ids.add(action.id)
        if action.environment is not None and action.trajectory is not None:
            ids |= {each.id for each in index.environment_queue(action.trajectory, first=0, limit=MAX_FOLLOWERS)}
    reason = decision.failure.value if decision.failure is not None else None
    return dict.fromkeys(ids, (ActionOutcome.INFRA_ERROR, reason))
