"""A model of Postgres in dictionaries, as the scheduler's index sees it through polls and grants."""

from dataclasses import dataclass, field, replace
from uuid import UUID

from arl_core.domain.model import Fence, Grant
from arl_core.domain.states import ActionState
from arl_scheduler.queries.poll_result import EnvironmentRow, PollResult
from arl_wire.internal.scheduler import QueuedActionRow
from support.builders import a_held_action, a_poll, a_queued_row, an_environment_row, numbered

__all__ = ["Database", "Row"]


@dataclass
class Row:
    id: UUID
    trajectory: str | None
    state: ActionState
    xid: int
    grant_no: int = 0
    grant: Grant | None = None

    def queued(self) -> QueuedActionRow:
        persistent = self.trajectory is not None
        environment = self.grant.environment if self.grant is not None else None
        row = a_queued_row(self.id.int, trajectory=self.trajectory, persistent=persistent, environment_id=environment)
        return row.model_copy(update={"grant_no": self.grant_no})


@dataclass
class Database:
    xid: int = 1
    rows: dict[UUID, Row] = field(default_factory=dict)
    environments: dict[UUID, tuple[int, EnvironmentRow]] = field(default_factory=dict)

    def tick(self) -> int:
        self.xid += 1
        return self.xid

    def submit(self, trajectory: str | None) -> Row:
        row = Row(numbered(len(self.rows) + 1), trajectory, ActionState.QUEUED, self.tick())
        self.rows[row.id] = row
        return row

    def take(self, grant: Grant) -> bool:
        row = self.rows[grant.fence.action_id]
        if row.state is not ActionState.QUEUED or row.grant_no != grant.fence.grant_no - 1:
            return False
        row.state, row.grant_no, row.grant = ActionState.GRANTED, grant.fence.grant_no, grant
        return True

    def start(self, row: Row) -> bool:
        """Start the attempt. Return False if the manager would report the environment as lost."""
        row.state = ActionState.RUNNING
        if row.grant is None or row.grant.environment is None or row.trajectory is None:
            return True
        id = row.grant.environment
        if id in self.environments:
            return not self.environments[id][1].is_ended
        if any(each.trajectory == row.trajectory and not self._is_free(each) for _, each in self.environments.values()):
            return False
        made = an_environment_row(id, row.trajectory, node=row.grant.node)
        self.environments[id] = (self.tick(), made)
        return True

    def requeue(self, row: Row) -> None:
        row.state, row.xid = ActionState.QUEUED, self.tick()

    def change(self, environment: EnvironmentRow, **changed: bool) -> None:
        self.environments[environment.id] = (self.tick(), replace(environment, **changed))

    def cancel(self, trajectory: str) -> list[UUID]:
        """Cancel the queued actions of a trajectory and return their ids; the leader settles them."""
        queued = [row for row in self.in_state(ActionState.QUEUED) if row.trajectory == trajectory]
        for row in queued:
            row.state = ActionState.SETTLED
        return [row.id for row in queued]

    def in_state(self, *states: ActionState) -> list[Row]:
        return [row for row in self.rows.values() if row.state in states]

    def live(self) -> list[EnvironmentRow]:
        return [each for _, each in self.environments.values() if not each.is_ended]

    def users(self, environment: EnvironmentRow) -> list[Row]:
        held = self.in_state(ActionState.GRANTED, ActionState.RUNNING)
        return [row for row in held if row.grant is not None and row.grant.environment == environment.id]

    def poll(self, mark: int) -> PollResult:
        changed = [(xid, each) for xid, each in self.environments.values() if xid >= mark]
        if mark == 0:
            changed = [(xid, each) for xid, each in changed if not self._is_free(each)]
        held = [self._held(row) for row in self.in_state(ActionState.GRANTED, ActionState.RUNNING)]
        return a_poll(
            queued=[row.queued() for row in self.in_state(ActionState.QUEUED) if row.xid >= mark],
            held=held,
            environments=[each for _, each in sorted(changed, key=lambda entry: entry[0])],
            mark=self.tick(),
        )

    def _held(self, row: Row):  # type: ignore[no-untyped-def]
        assert row.grant is not None
        grant = row.grant
        return a_held_action(
            Fence(row.id, row.grant_no),
            state=row.state,
            trajectory=row.trajectory,
            resources=grant.resources,
            environment=grant.environment,
        )

    def _is_free(self, environment: EnvironmentRow) -> bool:
        return environment.is_ended and environment.is_delete_requested
