"""The sweep that other tests judge by."""

from uuid import UUID

from support.bookings import Edge, most_held

A, B = UUID(int=1), UUID(int=2)


def edge(id: UUID, grant_no: int, state: str, cpu: int = 1000, node: int = 1) -> Edge:
    return Edge(id, grant_no, state, node, {"cpu_milli": cpu})


def test_what_is_held_at_once_adds_up() -> None:
    log = [edge(A, 1, "granted"), edge(A, 1, "running"), edge(B, 1, "granted"), edge(A, 1, "settled")]
    assert most_held(log) == {1: {"cpu_milli": 2000}}


def test_what_follows_a_release_does_not() -> None:
    log = [
        edge(A, 1, "granted"),
        edge(A, 1, "queued"),
        edge(B, 1, "granted"),
        edge(B, 1, "settled"),
        edge(A, 2, "granted"),
    ]
    assert most_held(log) == {1: {"cpu_milli": 1000}}


def test_nodes_and_resizes_count_apart() -> None:
    log = [edge(A, 1, "granted"), edge(B, 1, "granted", node=2), edge(A, 1, "running", cpu=3000), edge(A, 1, "running")]
    assert most_held(log) == {1: {"cpu_milli": 3000}, 2: {"cpu_milli": 1000}}
