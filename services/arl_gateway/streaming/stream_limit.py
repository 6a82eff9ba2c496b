"""How many outputs may be followed at once, by all and by the clients of one project."""

from collections import Counter
from collections.abc import Callable

from arl_wire.errors import Unavailable

__all__ = ["StreamLimiter"]

RETRY_AFTER_S = 5


class StreamLimiter:
    def __init__(self, limit: int, *, project_limit: int) -> None:
        self._limit, self._project_limit = limit, project_limit
        self._active: Counter[int] = Counter()

    @property
    def active(self) -> int:
        return self._active.total()

    def acquire(self, project_id: int) -> Callable[[], None]:
        """What comes back gives it up, once. Raises Unavailable where there is none left."""
        if self.active >= self._limit:
            raise Unavailable(
                f"{self._limit} outputs are followed here already; try again", retry_after_s=RETRY_AFTER_S
            )
        if self._active[project_id] >= self._project_limit:
            message = f"{self._project_limit} outputs of this project are followed here already; try again"
            raise Unavailable(message, retry_after_s=RETRY_AFTER_S)
        self._active[project_id] += 1
        held = [project_id]

        def leave() -> None:
            if held:
                self._active[held.pop()] -= 1

        return leave
