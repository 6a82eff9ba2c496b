"""Cached run time curves of action classes, and the age at which they expire."""

from arl_core.durations.curves import MAX_AGE_S, REFRESH_AFTER_RUN_S, CurveCache
from support.builders import a_class

CLASSES = [a_class(key) for key in range(20)]


class TestCurveExpiry:
    def test_expiration_list_stays_bounded_without_cache_token_requests(self) -> None:
        curves, sizes = CurveCache(), set[int]()
        for at in range(3 * 3600):
            curves.now = float(at)
            for cls in CLASSES:
                curves.curve_for(cls)
                curves.invalidate(cls.key)
            sizes.add(len(curves._expirations))
        assert max(sizes) <= 2 * len(CLASSES) * (MAX_AGE_S / REFRESH_AFTER_RUN_S + 1)

    def test_recomputed_curve_changes_cache_token(self) -> None:
        curves = CurveCache()
        curve, basis = curves.curve_for(CLASSES[0]), curves.cache_token("use")
        curves.now = MAX_AGE_S
        assert curves.curve_for(CLASSES[0]) is not curve
        assert curves.cache_token("use") is not basis

    def test_expired_curve_does_not_evict_newer_curves(self) -> None:
        curves = CurveCache()
        first, second = CLASSES[:2]
        curves.curve_for(first)
        curves.now = MAX_AGE_S / 2
        kept = curves.curve_for(second)
        curves.now = MAX_AGE_S
        curves.curve_for(first)
        assert curves.curve_for(second) is kept
