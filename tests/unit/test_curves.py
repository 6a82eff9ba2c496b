"""What is remembered of how long actions take, and for how long."""

from arl_core.curves import FRESH_S, KEPT_S, Curves
from support.builders import a_class

CLASSES = [a_class(key) for key in range(20)]


class TestDue:
    def test_hours_in_which_nobody_asks_for_a_basis_keep_no_more_than_a_moment_does(self) -> None:
        curves, sizes = Curves(), set[int]()
        for at in range(3 * 3600):
            curves.now = float(at)
            for cls in CLASSES:
                curves.of(cls)
                curves.learnt(cls.key)
            sizes.add(len(curves._due))
        assert max(sizes) <= 2 * len(CLASSES) * (KEPT_S / FRESH_S + 1)

    def test_a_curve_made_anew_is_another_basis(self) -> None:
        curves = Curves()
        curve, basis = curves.of(CLASSES[0]), curves.basis("use")
        curves.now = KEPT_S
        assert curves.of(CLASSES[0]) is not curve
        assert curves.basis("use") is not basis

    def test_of_what_counts_still_nothing_is_forgotten_with_the_others(self) -> None:
        curves = Curves()
        first, second = CLASSES[:2]
        curves.of(first)
        curves.now = KEPT_S / 2
        kept = curves.of(second)
        curves.now = KEPT_S
        curves.of(first)
        assert curves.of(second) is kept
