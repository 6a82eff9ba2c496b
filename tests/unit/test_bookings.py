"""Computation of the largest concurrent allocations per node, which other tests use."""

from uuid import UUID

from support.bookings import Edge, most_held

A, B = UUID(int=1), UUID(int=2)


def edge(id: UUID, grant_no: int, state: str, cpu: int = 1000, node: int = 1) -> Edge:
    return Edge(id, grant_no, state, node, {"cpu_milli": cpu})


def test_concurrent_allocations_add_up() -> None:
    log = [edge(A, 1, "granted"), edge(A, 1, "running"), edge(B, 1, "granted"), edge(A, 1, "settled")]
    assert most_held(log) == {1: {"cpu_milli": 2000}}


def test_allocations_after_a_release_do_not_add_up() -> None:
    log = [
        edge(A, 1, "granted"),
        edge(A, 1, "queued"),
        edge(B, 1, "granted"),
        edge(B, 1, "settled"),
        edge(A, 2, "granted"),
    ]
    assert most_held(log) == {1: {"cpu_milli": 1000}}


def test_nodes_and_resizes_are_counted_separately() -> None:
    log = [edge(A, 1, "granted"), edge(B, 1, "granted", node=2), edge(A, 1, "running", cpu=3000), edge(A, 1, "running")]
    assert most_held(log) == {1: {"cpu_milli": 3000}, 2: {"cpu_milli": 1000}}
