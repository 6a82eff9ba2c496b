"""Weights that are on their way to a device."""

__all__ = ["Coming"]


class Coming:
    """A copy that comes only as far as somebody waits for it: until then none of its numbers is one."""

    def __init__(self, whole: memoryview) -> None:
        self._whole = whole
        self.content = memoryview(bytearray(b"\xff" * len(whole)))
        self.waits: list[int] = []

    def arrived(self, upto: int) -> None:
        there = max(self.waits, default=0)
        self.content[there:upto] = self._whole[there:upto]
        self.waits.append(upto)
