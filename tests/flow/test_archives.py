"""Test file lists, archive downloads and archive uploads of environments, with hostile contents."""

import asyncio
import gzip
import io
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram, NotFound, Tangram
from support.postgres import Databases
from support.sandbox import living_descendants
from support.system import API_KEY, System, running_system

SMALL = {"task": "t", "memory_mib": 128, "disk_mib": 8}
OTHER_KEY = "tk_ffffffffffffffffffffffffffffffff"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "other", OTHER_KEY)
    gateway = {"TANGRAM_MAX_ARCHIVE_MIB": "64"}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides={"gateway": gateway}) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def home(api: httpx.AsyncClient) -> AsyncIterator[str]:
    """Provide the API path of an environment and delete the environment afterwards."""
    path = await made(api)
    yield path
    await api.delete(path)


async def made(api: httpx.AsyncClient, **wanted: Any) -> str:
    answer = await api.post("/v1/environments", json=SMALL | wanted)
    assert answer.status_code == 201, answer.text
    return f"/v1/environments/{answer.json()['id']}"


async def run(api: httpx.AsyncClient, home: str, script: str, **action: Any) -> str:
    body = {"task": "t", "argv": ["sh", "-c", script], "environment": {"id": home.rpartition("/")[2]}}
    body["demand"] = {"cpu": 0.5}
    answer = await api.post("/v1/actions", params={"wait": 30}, json=body | action)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["result"]["stdout"]["text"])


def archive(*members: tuple[tarfile.TarInfo, bytes], mode: Any = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as packed:
        for member, content in members:
            packed.addfile(member, io.BytesIO(content))
    return target.getvalue()


def a_file(name: str, content: bytes = b"x", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in changes.items():
        setattr(member, key, value)
    return member, content


def a_member(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    return a_file(name, b"", type=kind, linkname=target)


def names(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        return {member.name: member for member in packed}


async def test_uploaded_archive_is_downloaded_unchanged(api: httpx.AsyncClient, home: str) -> None:
    packed = archive(
        a_member("src", tarfile.DIRTYPE),
        a_file("src/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755, mtime=1_000_000_000),
        a_file("src/ü b.txt", bytes(range(256)) * 100),
        a_member("link", tarfile.SYMTYPE, "src/run.sh"),
        a_member("twin", tarfile.LNKTYPE, "src/run.sh"),
    )
    answer = await api.put(f"{home}/archive", content=packed)
    assert (answer.status_code, answer.json()) == (200, {"members": 5, "bytes": 25619})
    assert await run(api, home, "./link; stat -c %h twin; date -r twin +%s") == "ran\n2\n1000000000\n"
    answer = await api.get(f"{home}/archive")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-tar")
    found = names(answer.content)
    assert {name: member.type for name, member in found.items()} == {
        "link": tarfile.SYMTYPE,
        "src": tarfile.DIRTYPE,
        "src/run.sh": tarfile.REGTYPE,
        "src/ü b.txt": tarfile.REGTYPE,
        "twin": tarfile.LNKTYPE,
    }
    assert (found["src/run.sh"].mode, found["src/run.sh"].mtime) == (0o755, 1_000_000_000)
    other = await made(api)
    assert (await api.put(f"{other}/archive", content=gzip.compress(answer.content))).status_code == 200
    assert (await api.get(f"{other}/archive")).content == answer.content
    await api.delete(other)


async def test_archive_of_a_subdirectory_or_file_contains_only_that_part(api: httpx.AsyncClient, home: str) -> None:
    await api.put(f"{home}/archive", params={"path": "a/b"}, content=archive(a_file("c/d", b"1"), a_file("e", b"22")))
    assert list(names((await api.get(f"{home}/archive", params={"path": "a/b/c"})).content)) == ["d"]
    assert list(names((await api.get(f"{home}/archive", params={"path": "a/b/e"})).content)) == ["e"]
    assert (await api.get(f"{home}/archive", params={"path": "a/none"})).json()["code"] == "not_found"
    assert (await api.get(f"{home}/archive", params={"path": "../x"})).status_code == 422


async def test_out_of_range_modification_times_are_clamped(api: httpx.AsyncClient, home: str) -> None:
    await run(api, home, "touch -d @100000000000000 a; touch -d @30000000000 b; touch -d @-9 c")
    answer = await api.get(f"{home}/files")
    assert answer.status_code == 200, answer.text
    assert [each["modified_at"][:19] for each in answer.json()["items"]] == [
        "9999-12-31T23:59:59",
        "2920-08-30T05:20:00",
        "1970-01-01T00:00:00",
    ]


async def test_file_list_returns_every_entry_across_pages(api: httpx.AsyncClient, home: str) -> None:
    await run(
        api, home, "mkdir -p b/c; echo hi > b/c/f; ln -s /etc/passwd a; mkfifo p; printf x > \"$(printf 'n\\377')\""
    )
    query: dict[str, Any] = {"recursive": True, "limit": 2}
    seen: list[dict[str, Any]] = []
    while True:
        page = (await api.get(f"{home}/files", params=query)).json()
        seen += page["items"]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert [(each["path"], each["type"]) for each in seen] == [
        ("a", "symlink"),
        ("b", "directory"),
        ("b/c", "directory"),
        ("b/c/f", "file"),
        ("n\\xff", "file"),
        ("p", "other"),
    ]
    assert (seen[0]["target"], seen[3]["size"], seen[3]["mode"] & 0o600) == ("/etc/passwd", 3, 0o600)
    top = (await api.get(f"{home}/files", params={"path": "b"})).json()["items"]
    assert [each["path"] for each in top] == ["c"]
    assert (await api.get(f"{home}/files", params={"path": "zz"})).status_code == 404
    assert (await api.get(f"{home}/files", params={"cursor": "616"})).status_code == 400
    too_long = await api.get(f"{home}/files", params={"cursor": "61" * 5000})
    assert (too_long.status_code, too_long.json()["errors"][0]["field"]) == (422, "query.cursor")


@pytest.mark.parametrize(
    ("member", "word"),
    [
        (a_file("../out"), "leads out"),
        (a_file("/etc/passwd"), "leads out"),
        (a_file("a/../../out"), "leads out"),
        (a_member("hard", tarfile.LNKTYPE, "/etc/passwd"), "leads out"),
        (a_member("hard", tarfile.LNKTYPE, "../../etc/passwd"), "leads out"),
        (a_member("hard", tarfile.LNKTYPE, "nothing"), "is not a file"),
        (a_member("null", tarfile.CHRTYPE), "device"),
        (a_member("pipe", tarfile.FIFOTYPE), "device or a pipe"),
        (a_file("etc/x"), "cannot be created"),
        (a_file("there"), "cannot be created"),
    ],
)
async def test_invalid_archive_member_is_refused_by_name(
    api: httpx.AsyncClient, home: str, member: tuple[tarfile.TarInfo, bytes], word: str
) -> None:
    """Members before the invalid one are written."""
    await run(api, home, "ln -s /etc etc; mkdir there; touch there/y")
    answer = await api.put(f"{home}/archive", content=archive(a_file("first"), member, a_file("last")))
    assert answer.status_code in (409, 422), answer.text
    assert repr(member[0].name) in answer.json()["detail"]
    assert word in answer.json()["detail"]
    assert await run(api, home, "ls -A; ls /out ../out 2>&1 | grep -v such") == "etc\nfirst\nthere\n"


async def test_set_uid_bits_of_members_are_removed(api: httpx.AsyncClient, home: str) -> None:
    await api.put(f"{home}/archive", content=archive(a_file("f", mode=0o6755)))
    assert await run(api, home, "stat -c %a f") == "755\n"


async def test_symlink_member_cannot_redirect_a_later_member(api: httpx.AsyncClient, home: str) -> None:
    packed = archive(a_member("d", tarfile.SYMTYPE, "/tmp"), a_file("d/f"))
    assert (await api.put(f"{home}/archive", content=packed)).status_code == 409
    assert await run(api, home, "ls /tmp") == ""


@pytest.mark.parametrize(
    "content", [b"no archive at all", archive(a_file("f", b"y" * 5000))[:3000], b"\x1f\x8b\x08junk"]
)
async def test_invalid_archive_is_refused(api: httpx.AsyncClient, home: str, content: bytes) -> None:
    answer = await api.put(f"{home}/archive", content=content)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_archive_too_large_for_the_disk_keeps_existing_files(api: httpx.AsyncClient, home: str) -> None:
    await run(api, home, "echo old > f")
    answer = await api.put(f"{home}/archive", content=archive(a_file("e", b"e"), a_file("f", os.urandom(9 << 20))))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "'f'" in answer.json()["detail"]
    assert await run(api, home, "head -c5 f; ls -A") == "old\ne\nf\n"
    await run(api, home, "head -c 7000000 /dev/zero > most")
    answer = await api.put(f"{home}/archive", content=archive(a_file("f", b"x" * (3 << 20))))
    assert (answer.status_code, "disk" in answer.json()["detail"]) == (409, True)
    assert await run(api, home, "cat f; rm most; ls -A") == "old\ne\nf\n"


async def test_decompression_bomb_is_refused_without_writing(api: httpx.AsyncClient, home: str) -> None:
    zeros = archive(a_file("z", b"\0" * (60 << 20)))
    answer = await api.put(f"{home}/archive", content=gzip.compress(zeros))
    assert answer.status_code == 409, answer.text
    header = tarfile.TarInfo("a")
    header.pax_headers = {"comment": "c" * (100 << 20)}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as packed:
        packed.addfile(header)
    answer = await api.put(f"{home}/archive", content=gzip.compress(target.getvalue(), 1))
    assert (answer.status_code, "extended headers" in answer.json()["detail"]) == (422, True), answer.text
    assert await run(api, home, "ls -A") == ""


@pytest.mark.slow
async def test_archive_with_too_many_members_is_refused(api: httpx.AsyncClient, home: str) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as packed:
        for number in range(100_000):
            packed.addfile(tarfile.TarInfo(f"d{number % 7}/{number}"))
    answer = await api.put(f"{home}/archive", content=gzip.compress(target.getvalue(), 1))
    assert answer.status_code in (409, 413), answer.text
    assert await run(api, home, "rm -rf d*; ls -A") == ""


async def test_archive_above_the_size_limit_is_refused_both_ways(api: httpx.AsyncClient) -> None:
    home = await made(api, disk_mib=200, memory_mib=512)
    answer = await api.put(f"{home}/archive", content=b"\0" * (65 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    await run(api, home, "head -c 70000000 /dev/zero > big", timeout_s=60)
    answer = await api.get(f"{home}/archive")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    await api.delete(home)


async def test_pipes_sockets_and_symlink_loops_do_not_block_the_archive(api: httpx.AsyncClient, home: str) -> None:
    a_socket = "import socket; socket.socket(1).bind('s')"
    await run(api, home, f'mkfifo p; ln -s /proc/1/root/etc out; ln -s loop loop; python3 -c "{a_socket}"')
    found = names((await api.get(f"{home}/archive")).content)
    assert {name: member.type for name, member in found.items()} == {"loop": tarfile.SYMTYPE, "out": tarfile.SYMTYPE}
    await run(api, home, "mkdir shut; chmod 0 shut")
    answer = await api.get(f"{home}/archive")
    assert (answer.status_code, "shut" in answer.json()["detail"]) == (409, True)


async def test_transfer_waits_for_earlier_actions(api: httpx.AsyncClient, home: str) -> None:
    """Leftover processes are frozen during the transfer, so they see no partial state."""
    body = {"task": "t", "environment": {"id": home.rpartition("/")[2]}, "demand": {"cpu": 0.5}}
    script = "(while :; do ls | wc -l >> ../tmp/seen; done) & sleep 1; touch made"
    first = await api.post("/v1/actions", json=body | {"argv": ["sh", "-c", script]})
    found = names((await api.get(f"{home}/archive")).content)
    assert "made" in found
    assert (await api.get(f"/v1/actions/{first.json()['id']}")).json()["outcome"] == "ok"


async def test_files_of_another_project_are_not_found(api: httpx.AsyncClient, home: str) -> None:
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    calls: list[Callable[[], Any]] = [
        lambda: api.get(f"{home}/files", headers=other),
        lambda: api.get(f"{home}/archive", headers=other),
        lambda: api.put(f"{home}/archive", headers=other, content=archive()),
    ]
    assert [(await call()).status_code for call in calls] == [404, 404, 404]
    assert (await api.get(f"/v1/environments/{uuid4()}/archive")).status_code == 404


async def test_ended_environment_has_no_archive(api: httpx.AsyncClient) -> None:
    home = await made(api)
    await api.delete(home)
    answer = await api.get(f"{home}/archive")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (409, "environment.id")


@pytest.mark.slow
async def test_transfer_without_a_client_is_abandoned(api: httpx.AsyncClient, home: str) -> None:
    body = {"task": "t", "kind": "environment.transfer", "environment": {"id": home.rpartition("/")[2]}}
    settled = (await api.post("/v1/actions", params={"wait": 30}, json=body)).json()
    assert (settled["outcome"], settled["reason"]) == ("infra_error", "transfer_abandoned")
    assert (await api.get(f"{home}/files")).status_code == 200


async def test_sync_and_async_clients_transfer_directories(
    system: System, api: httpx.AsyncClient, home: str, tmp_path: Path
) -> None:
    id, source = UUID(home.rpartition("/")[2]), tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_bytes(b"content")
    (source / "link").symlink_to("sub/f")
    os.mkfifo(source / "pipe")

    def blocking() -> list[str]:
        with Tangram(system.url, API_KEY) as tangram:
            assert tangram.upload_directory(id, source, "in").bytes == 7
            tangram.download_directory(id, tmp_path / "back", "in")
            return [entry.path for entry in tangram.list_files(id, recursive=True)]

    assert await asyncio.to_thread(blocking) == ["in", "in/link", "in/sub", "in/sub/f"]
    assert (tmp_path / "back" / "link").read_bytes() == b"content"
    async with AsyncTangram(system.url, API_KEY) as tangram:
        await tangram.download_archive(id, tmp_path / "a.tar", "in/sub")
        assert (await tangram.upload_archive(id, tmp_path / "a.tar")).members == 1
        with pytest.raises(NotFound):
            await tangram.download_archive(id, tmp_path / "b.tar", "none")
    assert await run(api, home, "cat f") == "content"


async def test_cli_pushes_and_pulls_directories(system: System, home: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    variables = {**os.environ, "TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY}

    async def tangram(*arguments: str) -> str:
        command = [sys.executable, "-m", "arl_tangram.cli", "environments", *arguments]
        process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    id = home.rpartition("/")[2]
    await tangram("push", id, str(tmp_path), "in")
    assert "in/f" in await tangram("files", id, "--recursive")
    await tangram("pull", id, "in", str(tmp_path / "back"))
    assert (tmp_path / "back" / "f").read_text() == "content"


async def test_disconnected_upload_leaves_no_file_or_process(system: System, api: httpx.AsyncClient, home: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        head, _ = a_file("f", size=1 << 23)
        yield head.tobuf()
        sent.set()
        await asyncio.Event().wait()

    sent = asyncio.Event()
    sending = asyncio.create_task(api.put(f"{home}/archive", content=endless()))
    await sent.wait()
    sending.cancel()
    await asyncio.wait((sending,))
    assert await run(api, home, "ls -A") == ""
    await nothing_is_at_work(system)


async def nothing_is_at_work(system: System) -> None:
    """Wait until the launcher has no transfer processes left."""
    launcher = system.processes["launcher"].pid
    async with asyncio.timeout(10):
        while any(is_worker(pid) for pid in living_descendants(launcher)):
            await asyncio.sleep(0.05)


def is_worker(pid: int) -> bool:
    """Return True for a process in an environment's mount namespace but outside its pid namespace."""
    try:
        mounts, pids = os.readlink(f"/proc/{pid}/ns/mnt"), os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return False
    return mounts != os.readlink("/proc/self/ns/mnt") and pids == os.readlink("/proc/self/ns/pid")
