import time

from arl_store.values import uuid7


def test_ids_increase_strictly_with_each_call() -> None:
    ids = [uuid7() for _ in range(20_000)]
    assert ids == sorted(set(ids))


def test_id_is_a_version_7_uuid_of_current_time() -> None:
    made = uuid7()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert abs((made.int >> 80) / 1000 - time.time()) < 60
