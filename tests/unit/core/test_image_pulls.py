"""Test where images are pulled, when actions fail, and which images are removed."""

from arl_core.images.eviction import StoredImage, choose_evictions
from arl_core.images.pull_planning import (
    FAILURE_HOLDS_S,
    ImageCopy,
    ImageDemand,
    ImageFailure,
    PullCandidate,
    PullDecision,
    decide_pull,
    expected_pull_s,
)

NOW = 1000.0


def a_candidate(node: int, pull_s: float = 5.0, *, has_room: bool = True, free_milli: int = 1000) -> PullCandidate:
    return PullCandidate(node=node, has_room=has_room, free_milli=free_milli, pull_s=pull_s)


def failed(node: int, reason: ImageFailure, *, at: float = NOW - 1) -> ImageCopy:
    return ImageCopy(node=node, state="failed", changed_at=at, reason=reason)


def decide(
    copies: list[ImageCopy], candidates: list[PullCandidate], *, submitted: float = NOW - 2, now: float = NOW
) -> PullDecision:
    return decide_pull(ImageDemand(oldest_submitted=submitted), copies, candidates, now=now)


class TestDecidePull:
    def test_image_is_pulled_where_most_of_its_bytes_are(self) -> None:
        assert decide([], [a_candidate(1, 9.0), a_candidate(2, 1.0), a_candidate(3, 9.0)]).node == 2

    def test_node_with_room_wins_unless_its_pull_takes_longer_than_the_wait(self) -> None:
        full = a_candidate(1, 0.5, has_room=False)
        assert decide([], [full, a_candidate(2, 5.0)]).node == 2
        assert decide([], [full, a_candidate(2, 60.0)]).node == 1

    def test_more_free_cores_decide_between_equal_pulls(self) -> None:
        assert decide([], [a_candidate(1, free_milli=500), a_candidate(2, free_milli=4000)]).node == 2

    def test_no_second_pull_begins_while_one_runs(self) -> None:
        pulling = ImageCopy(node=1, state="pulling", changed_at=NOW)
        assert decide([pulling], [a_candidate(1), a_candidate(2)]) == PullDecision()

    def test_pull_on_a_node_that_is_gone_does_not_count(self) -> None:
        pulling = ImageCopy(node=9, state="pulling", changed_at=NOW)
        assert decide([pulling], [a_candidate(1)]).node == 1

    def test_second_node_pulls_once_actions_waited_as_long_as_the_pull_takes(self) -> None:
        ready = ImageCopy(node=1, state="ready", changed_at=NOW)
        candidates = [a_candidate(1, 0.0, has_room=False), a_candidate(2, 5.0)]
        assert decide([ready], candidates, submitted=NOW - 4.9).node is None
        assert decide([ready], candidates, submitted=NOW - 5.1).node == 2
        assert decide([ready], [candidates[0], a_candidate(2, 5.0, has_room=False)], submitted=NOW - 60).node is None

    def test_definite_failure_ends_the_actions_that_wait(self) -> None:
        decision = decide([failed(1, ImageFailure.NOT_FOUND)], [a_candidate(1), a_candidate(2)])
        assert decision.failure is ImageFailure.NOT_FOUND
        assert decision.fails_until == NOW - 1 + FAILURE_HOLDS_S

    def test_later_action_tries_the_image_again(self) -> None:
        old = failed(1, ImageFailure.NOT_FOUND, at=NOW - 60)
        assert decide([old], [a_candidate(1)], submitted=NOW - 1).node == 1

    def test_unavailable_registry_is_tried_from_every_node(self) -> None:
        first = failed(1, ImageFailure.REGISTRY_UNAVAILABLE)
        assert decide([first], [a_candidate(1), a_candidate(2)]).node == 2
        both = [first, failed(2, ImageFailure.REGISTRY_UNAVAILABLE)]
        assert decide(both, [a_candidate(1), a_candidate(2)]).failure is ImageFailure.REGISTRY_UNAVAILABLE

    def test_full_store_is_waited_for(self) -> None:
        full = failed(1, ImageFailure.STORE_FULL)
        assert decide([full], [a_candidate(1)]) == PullDecision()
        assert decide([full], [a_candidate(1)], now=NOW + FAILURE_HOLDS_S).node == 1

    def test_actions_wait_while_no_node_can_pull(self) -> None:
        assert decide([], []) == PullDecision()


def test_expected_pull_grows_with_the_missing_bytes() -> None:
    assert expected_pull_s(0, None) < expected_pull_s(300_000_000, None) == 10.5
    assert expected_pull_s(300_000_000, 300e6) == 1.5


LAYERS = {"base": 100, "a": 10, "b": 20, "template": 50}


class TestChooseEvictions:
    def images(self, **changes: bool) -> list[StoredImage]:
        return [
            StoredImage(name="new", used_at=3, layers=frozenset({"base", "b"})),
            StoredImage(name="old", used_at=1, layers=frozenset({"base", "a"}), is_pinned=changes.get("pinned", False)),
            StoredImage(name="kept", used_at=2, layers=frozenset({"template"})),
        ]

    def choose(self, bytes_to_free: int, **changes: bool) -> list[str]:
        images = self.images(**changes)
        return choose_evictions(images, LAYERS, kept_layers={"template"}, bytes_to_free=bytes_to_free)

    def test_longest_unused_image_is_removed_first(self) -> None:
        assert self.choose(10) == ["old"]

    def test_shared_layer_counts_only_with_its_last_image(self) -> None:
        assert self.choose(11) == ["old", "kept", "new"]

    def test_image_in_use_is_never_removed(self) -> None:
        assert self.choose(1000, pinned=True) == ["kept", "new"]

    def test_nothing_is_removed_without_need(self) -> None:
        assert self.choose(0) == []
