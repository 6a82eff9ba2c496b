"""How many outputs may be followed at once, by all and by the clients of one project."""

from collections import Counter
from collections.abc import Callable

from arl_wire.errors import Unavailable

__all__ = ["Places"]

RETRY_AFTER_S = 5


class Places:
    def __init__(self, limit: int, *, of_project: int) -> None:
        self._limit, self._of_project = limit, of_project
        self._taken: Counter[int] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, project_id: int) -> Callable[[], None]:
        """What comes back gives it up, once. Raises Unavailable where there is none left."""
        if self.taken >= self._limit:
            raise Unavailable(
                f"{self._limit} outputs are followed here already; try again", retry_after_s=RETRY_AFTER_S
            )
        if self._taken[project_id] >= self._of_project:
            message = f"{self._of_project} outputs of this project are followed here already; try again"
            raise Unavailable(message, retry_after_s=RETRY_AFTER_S)
        self._taken[project_id] += 1
        held = [project_id]

        def leave() -> None:
            if held:
                self._taken[held.pop()] -= 1

        return leave
