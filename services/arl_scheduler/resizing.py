"""Running actions get other amounts. What a shrink frees is given on only after the manager has confirmed it.

A growth is written first and the manager told then; a shrink is asked of the manager first and written then. So a row
never says less than its node holds, and whatever was being said when somebody died, the row and the manager's own
poll of it mend a growth, and `begin` a shrink: it asks every manager what its actions have.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from arl_core.fence import Fence
from arl_core.model import Amounts, Resize
from arl_kit.peers import Peers
from arl_scheduler.holds import Holds
from arl_scheduler.homes import Hold
from arl_scheduler.mailbox import Mailbox
from arl_scheduler.rows import NewAmounts, NodeRow
from arl_wire.internal import ResizeAnswer, ResizeBatch, ResizeBody, ResizeResponse

__all__ = ["Resizing"]

CORES = "cpu_milli"

log = logging.getLogger(__name__)


class Resizing:
    """At most one resize of an action is under way. Nothing here waits: answers come by the mailbox."""

    def __init__(self, peers: Peers, mailbox: Mailbox) -> None:
        self._peers = peers
        self._mailbox = mailbox
        self._unsure: set[Fence] = set()
        """Of which it is not known what their managers have."""
        self._resting: set[Fence] = set()
        """Their manager could not do it now: until the next poll they are left alone, or it would be asked for ever."""
        self._asking: set[asyncio.Task[None]] = set()

    def begin(self, holds: Holds) -> None:
        """Nothing is known of what an earlier leader asked for."""
        self._unsure = {hold.fence for hold in holds.resizable()}

    async def stop(self) -> None:
        for task in tuple(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def growths(self, holds: Holds, decided: Iterable[Resize]) -> list[NewAmounts]:
        """What of this is to be written before the manager is told."""
        return [new for new, hold in _news(holds, decided) if new.amounts[CORES] > hold.amounts[CORES]]

    def shrinks(self, holds: Holds, decided: Iterable[Resize]) -> list[NewAmounts]:
        """What of this is to be confirmed before it is written."""
        return [new for new, hold in _news(holds, decided) if new.amounts[CORES] < hold.amounts[CORES]]

    def ask(self, holds: Holds, nodes: dict[int, NodeRow], changes: Iterable[NewAmounts]) -> None:
        """Ask the managers for these, one request each."""
        by_node: dict[int, list[ResizeBody]] = defaultdict(list)
        for change in changes:
            hold = holds.under(change.fence)
            if hold is None:
                continue
            holds.changing(change.fence, change.amounts)
            if hold.node in nodes:
                by_node[hold.node].append(_body(change.fence, change.amounts, change.seq))
            else:
                self._unsure.add(change.fence)
        for node, bodies in by_node.items():
            task = asyncio.create_task(self._ask(nodes[node], bodies), name="resize")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def look(self, holds: Holds, nodes: dict[int, NodeRow]) -> None:
        """Ask again where no answer came."""
        for fence in self._resting:
            holds.changing(fence, None)
        self._resting.clear()
        unsure, self._unsure = self._unsure, set()
        known = [hold for fence in sorted(unsure) if (hold := holds.under(fence)) is not None]
        self.ask(holds, nodes, [NewAmounts(hold.fence, hold.amounts, hold.amounts_seq) for hold in known])

    def confirmed(self, holds: Holds, answers: Iterable[ResizeAnswer]) -> tuple[list[NewAmounts], list[NewAmounts]]:
        """What the rows are to say now, and what is to be asked besides: a growth that found no room is taken back.

        What a manager says that it has is so until it is asked for another with a higher number. Of two answers the
        one with the higher number is the later one.
        """
        written: list[NewAmounts] = []
        asked: list[NewAmounts] = []
        for answer in answers:
            fence = Fence(answer.id, answer.grant_no)
            hold = holds.under(fence)
            if hold is not None and answer.status in ("absent", "full"):
                self._resting.add(fence)
            else:
                holds.changing(fence, None)
            if hold is None or answer.cpu_milli is None or answer.amounts_seq is None:
                continue
            amounts = {**hold.amounts, CORES: answer.cpu_milli}
            if answer.status == "full":
                asked.append(NewAmounts(fence, amounts, hold.amounts_seq + 1))
            elif _is_news(answer, hold):
                written.append(NewAmounts(fence, amounts, answer.amounts_seq))
        return written, asked

    def unanswered(self, fences: Iterable[Fence]) -> None:
        """Whether their managers heard of it is not known; they are asked again after the next poll, and not before."""
        self._unsure.update(fences)

    async def _ask(self, node: NodeRow, bodies: Sequence[ResizeBody]) -> None:
        try:
            content = await self._peers.call(
                f"{node.url}/internal/resizes", ResizeBatch(node_epoch=node.epoch, resizes=list(bodies))
            )
            self._mailbox.resized(ResizeResponse.model_validate_json(content).answers)
        except Exception as error:  # noqa: BLE001 - whatever it was, the manager is asked again
            log.warning("resizes at node %d are not answered: %r", node.id, error)
            self._mailbox.unanswered(Fence(body.id, body.grant_no) for body in bodies)


def _is_news(answer: ResizeAnswer, hold: Hold) -> bool:
    """Whether a manager has less than the row says, or had a later resize."""
    had, has = (hold.amounts_seq, hold.amounts[CORES]), (answer.amounts_seq or 0, answer.cpu_milli or 0)
    return has != had and has[0] >= had[0] and has[1] <= had[1]


def _news(holds: Holds, decided: Iterable[Resize]) -> Iterable[tuple[NewAmounts, Hold]]:
    for resize in decided:
        hold = holds.under(resize.fence)
        if hold is not None and not holds.is_changing(hold):
            yield NewAmounts(resize.fence, resize.amounts, hold.amounts_seq + 1), hold


def _body(fence: Fence, amounts: Amounts, seq: int) -> ResizeBody:
    return ResizeBody(id=fence.action_id, grant_no=fence.grant_no, cpu_milli=amounts[CORES], amounts_seq=seq)
