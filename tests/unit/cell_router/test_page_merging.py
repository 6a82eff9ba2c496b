"""Test lists of several cells as one list."""

from base64 import urlsafe_b64encode
from typing import Any

import pytest

from arl_cell_router.merging.page_merging import PageCursor, merge_item, merge_page, merge_table, parse_router_key_id
from arl_store.values import uuid7
from arl_wire.errors import BadRequest, NotFound


class ActionLists:
    """The lists of some cells, whose pages a test reads through the merge."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.ids: dict[int, list[str]] = {cell: [] for cell in counts}
        for turn in range(max(counts.values())):
            for cell, count in counts.items():
                if turn < count:
                    self.ids[cell].insert(0, str(uuid7(cell)))

    def page(self, cell: int, before: str | None, limit: int) -> dict[str, Any]:
        rest = [id for id in self.ids[cell] if before is None or id < before]
        page: dict[str, Any] = {"items": [{"id": id} for id in rest[:limit]]}
        return page | ({"next_cursor": rest[limit - 1]} if len(rest) > limit else {})

    def read_all(self, limit: int) -> list[str]:
        found, cursor = [], PageCursor(dict.fromkeys(self.ids))
        while True:
            pages = {cell: self.page(cell, at, limit) for cell, at in cursor.positions.items()}
            merged = merge_page("actions", pages, limit=limit, cursor=cursor, missing=[])
            assert len(merged["items"]) <= limit
            found += [item["id"] for item in merged["items"]]
            if "next_cursor" not in merged:
                return found
            cursor = PageCursor.parse(merged["next_cursor"], list(self.ids))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("counts", [{1: 5, 2: 5}, {1: 7, 2: 0}, {1: 1, 2: 9, 3: 4}])
def test_pages_have_every_action_once_and_the_newest_first(counts: dict[int, int], limit: int) -> None:
    lists = ActionLists(counts)
    assert lists.read_all(limit) == sorted((id for ids in lists.ids.values() for id in ids), reverse=True)


def test_cell_that_fails_between_pages_is_left_out_and_stays_named() -> None:
    lists = ActionLists({1: 3, 2: 3})
    start = PageCursor({1: None, 2: None})
    first = merge_page("actions", {1: lists.page(1, None, 2)}, limit=2, cursor=start, missing=[2])
    cursor = PageCursor.parse(first["next_cursor"], [1, 2])
    assert (list(cursor.positions), cursor.missing) == ([1], [2])


def test_environments_are_ordered_by_their_creation() -> None:
    def environment(id: int, at: str) -> dict[str, Any]:
        sizes = dict.fromkeys(("memory_mib", "disk_mib", "pids", "idle_ttl_s"), 1)
        names = dict.fromkeys(("task", "trajectory", "node", "template"), "x")
        full = f"00000000-0000-7000-8001-00000000000{id}"
        return {"id": full, "state": "live", "created_at": at, "last_used_at": at, **sizes, **names}

    new, old = environment(1, "2026-03-02T09:00:00.5Z"), environment(2, "2026-03-02T09:00:00Z")
    start = PageCursor({1: None, 2: None})
    merged = merge_page("environments", {1: {"items": [old]}, 2: {"items": [new]}}, limit=1, cursor=start, missing=[])
    assert merged["items"] == [new]
    assert PageCursor.parse(merged["next_cursor"], [1, 2]).positions == {1: None}
    pages = {1: {"items": [old], "next_cursor": "x"}}
    last = merge_page("environments", pages, limit=1, cursor=start, missing=[])
    position = PageCursor.parse(last["next_cursor"], [1, 2]).positions[1]
    assert position == f"1772442000000000.{old['id']}"


def encoded(document: str) -> str:
    return urlsafe_b64encode(document.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{}",
        PageCursor({9: None}).encode(),
        PageCursor({1: None}).encode()[:-3],
        pytest.param(PageCursor({}).encode(), id="no positions"),
        pytest.param(encoded('{"c":{"1":null},"m":[Infinity]}'), id="infinity"),
        pytest.param(encoded("[" * 20_000), id="deep"),
        pytest.param(encoded(f'{{"c":{{"{"1" * 5000}":null}},"m":[]}}'), id="digits"),
    ],
)
def test_foreign_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        PageCursor.parse(text, [1, 2])
    assert caught.value.errors[0].field == "query.cursor"


def test_nodes_of_one_name_are_both_shown_with_their_cell() -> None:
    tables = {1: [{"name": "b"}, {"name": "a"}], 2: [{"name": "a"}]}
    assert merge_table("nodes", tables) == [
        {"name": "a", "cell": 1},
        {"name": "a", "cell": 2},
        {"name": "b", "cell": 1},
    ]


def test_queues_of_a_task_add_their_counts() -> None:
    queue = {"task": "t", "queued": 2, "running": 1, "weight": 2.0}
    other = {"task": "u", "queued": 1, "running": 0, "weight": 1.0}
    merged = merge_table("queues", {1: [queue], 2: [other, {**queue, "queued": 3}]})
    assert merged == [{**queue, "queued": 5, "running": 2}, other]


def test_reward_service_has_the_nodes_of_all_cells() -> None:
    one = {"name": "rm", "available": False, "nodes": [{"node": "a"}]}
    two = {"name": "rm", "available": True, "nodes": [{"node": "b"}]}
    assert merge_item("reward-services", {1: one, 2: two})["nodes"] == [{"node": "a"}, {"node": "b"}]
    assert merge_table("reward-services", {1: [one], 2: [two]})[0]["available"] is True


def test_same_key_of_two_cells_is_one_key_with_an_id_of_the_router() -> None:
    def key(id: int, fingerprint: str, at: str) -> dict[str, Any]:
        return {"id": id, "fingerprint": fingerprint, "created_at": f"2026-03-02T09:0{at}:00Z"}

    merged = merge_table("keys", {1: [key(7, "a", "1")], 2: [key(3, "b", "2"), key(9, "a", "1")]})
    assert [(each["fingerprint"], parse_router_key_id(str(each["id"]))) for each in merged] == [
        ("b", (2, 3)),
        ("a", (1, 7)),
    ]


def test_key_is_revoked_only_if_all_cells_have_revoked_it() -> None:
    revoked, valid = {"id": 1, "revoked_at": "2026-03-02T09:00:00Z"}, {"id": 2}
    assert "revoked_at" not in merge_item("keys", {1: revoked, 2: valid})
    assert merge_item("keys", {1: revoked, 2: revoked})["revoked_at"] == revoked["revoked_at"]


@pytest.mark.parametrize("text", ["", "x", "4096", "7", "9" * 30])
def test_id_of_no_key_is_unknown(text: str) -> None:
    with pytest.raises(NotFound):
        parse_router_key_id(text)
