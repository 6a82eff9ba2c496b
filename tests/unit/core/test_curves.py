"""Cached run time curves of action classes, and the age at which they expire."""

from arl_core.durations.curves import MAX_AGE_S, REFRESH_AFTER_RUN_S, CurveCache
from support.builders import a_class

CLASSES = [a_class(key) for key in range(20)]


class TestDue:
    def test_hours_in_which_nobody_asks_for_a_basis_keep_no_more_than_a_moment_does(self) -> None:
        curves, sizes = CurveCache(), set[int]()
        for at in range(3 * 3600):
            curves.now = float(at)
            for cls in CLASSES:
                curves.curve_for(cls)
                curves.invalidate(cls.key)
            sizes.add(len(curves._expirations))
        assert max(sizes) <= 2 * len(CLASSES) * (MAX_AGE_S / REFRESH_AFTER_RUN_S + 1)

    def test_a_curve_made_anew_is_another_basis(self) -> None:
        curves = CurveCache()
        curve, basis = curves.curve_for(CLASSES[0]), curves.cache_token("use")
        curves.now = MAX_AGE_S
        assert curves.curve_for(CLASSES[0]) is not curve
        assert curves.cache_token("use") is not basis

    def test_of_what_counts_still_nothing_is_forgotten_with_the_others(self) -> None:
        curves = CurveCache()
        first, second = CLASSES[:2]
        curves.curve_for(first)
        curves.now = MAX_AGE_S / 2
        kept = curves.curve_for(second)
        curves.now = MAX_AGE_S
        curves.curve_for(first)
        assert curves.curve_for(second) is kept
