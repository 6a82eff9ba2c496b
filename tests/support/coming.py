"""Weights that are on their way to a device."""

__all__ = ["Coming"]


class Coming:
    """A copy that comes only as far as somebody waits for it: until then none of its numbers is one."""

    def __init__(self, whole: memoryview) -> None:
        self._whole = whole
        self.content = memoryview(bytearray(b"\xff" * len(whole)))
        self.waits = [0]
        """How far it was waited for, one time after the other."""

    @property
    def is_whole(self) -> bool:
        return self.waits[-1] == len(self._whole)

    def __call__(self, upto: int) -> None:
        there = self.waits[-1]
        if upto > there:
            self.content[there:upto] = self._whole[there:upto]
            self.waits.append(upto)
