"""Test the users of an environment: their ids, files, programs and limits."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from arl_cpu.launcher.isolation.users import KEPT_CAPABILITIES
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template
from arl_cpu.templates.template_store import TemplateStore
from support.images import PROGRAMS, a_layer, a_root, an_oci_layout, member, packed
from support.sandbox import (
    HAS_USERS,
    NATIVE,
    Bench,
    a_bench,
    a_command,
    a_program,
    a_session_command,
    an_environment,
    living_descendants,
    zygote_of,
)
from support.work import moved

pytestmark = HAS_USERS
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/srv/app:/bin/sh\n",
    "etc/group": "root:x:0:\napp:x:1234:\ndocker:x:77:other,app\nlog:x:78:application\n",
}
IDS = 'echo "$(id -u):$(id -g) $(id -G) $HOME"'


@pytest.fixture(
    scope="module",
    params=[pytest.param("namespaces+native", marks=NATIVE), pytest.param("namespaces+python", marks=pytest.mark.slow)],
)
async def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param) as bench:
        yield bench


@pytest.fixture(scope="module")
async def image(sandbox: Bench, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Import an image with a user, files of several owners, and a set-uid program."""
    base = packed(a_root(tmp_path_factory.mktemp("root"), programs=(*PROGRAMS, "chown", "grep", "cp")))
    layer = a_layer(
        *(member(path, text) for path, text in ACCOUNTS.items()),
        member("root/", mode=0o700),
        member("srv/app/", uid=1234, gid=1234),
        member("srv/app/own", b"mine\n", uid=1234, gid=77, mode=0o600),
        member("srv/secret", b"secret\n", mode=0o600),
        member("bin/rootly", Path("/bin/cat").read_bytes(), mode=0o4755),
        member("srv/huge", b"", uid=4_000_000, gid=70_000),
    )
    assert sandbox.launcher is not None
    store = TemplateStore(sandbox.launcher.directory / "templates")
    config = {"User": "app", "WorkingDir": "/srv/app"}
    path = an_oci_layout(store.directory.parent / "image", [base, layer], config=config)
    budget = ImportBudget(max_bytes=1 << 30, max_members=10_000)
    return import_template(store, path, "with-users", budget=budget).name


async def output(sandbox: Bench, text: str, environment: EnvironmentSpec, user: str | None = None) -> str:
    report = await sandbox.run(a_command("sh", "-c", text, environment=environment, user=user))
    assert report.outcome == "ok", report
    return report.stdout.data.decode()


async def test_program_of_an_image_runs_as_its_user_with_groups_and_home(sandbox: Bench, image: str) -> None:
    environment = an_environment(template=image)
    assert await output(sandbox, IDS, environment) == "1234:1234 1234 77 /srv/app\n"
    assert await output(sandbox, IDS, environment, "root") == "0:0 0 /root\n"
    assert await output(sandbox, IDS, environment, "app:docker") == "1234:77 77 /srv/app\n"
    assert await output(sandbox, IDS, environment, "55") == "55:0 0 /root\n"
    assert await output(sandbox, IDS, environment, "55:66") == "55:66 66 /root\n"
    await sandbox.destroy(environment.id)


async def test_files_of_an_image_keep_their_owners_and_modes(sandbox: Bench, image: str) -> None:
    environment = an_environment(template=image)
    stats = "stat -c '%u:%g %a' own /srv/secret /bin/rootly /srv/huge /srv/app /bin/sh"
    expected = "1234:77 600\n0:0 600\n0:0 4755\n65534:65534 644\n1234:1234 755\n0:0 755\n"
    assert await output(sandbox, stats, environment) == expected
    assert (
        await output(sandbox, "cat own; cat /srv/secret 2>/dev/null || echo refused", environment) == "mine\nrefused\n"
    )
    assert await output(sandbox, "rootly /srv/secret", environment) == "secret\n"
    assert await output(sandbox, "cat own /srv/secret", environment, "root") == "mine\nsecret\n"
    await sandbox.destroy(environment.id)


async def test_files_of_an_action_belong_to_its_user(sandbox: Bench) -> None:
    environment = an_environment()
    for user, owner in ((None, 1000), ("root", 0)):
        command = a_command("touch", f"made-{owner}", environment=environment, user=user, files={f"d{owner}/in": b"x"})
        assert (await sandbox.run(command)).outcome == "ok"
        shown = await output(sandbox, f"stat -c %u:%g made-{owner} d{owner} d{owner}/in", environment)
        assert shown == f"{owner}:{owner}\n" * 3
    source = a_program("import os; print(os.getuid(), os.stat(__file__).st_uid)", environment=environment, user="root")
    assert (await sandbox.run(source)).stdout.data == b"0 0\n"
    fetched = await sandbox.run(a_command("chmod", "600", "made-0", environment=environment, user="root"))
    assert fetched.outcome == "ok"
    mine = await sandbox.run(a_command("true", environment=environment, fetch=("made-0", "made-1000")))
    assert set(mine.files) == {"made-1000"}
    await sandbox.destroy(environment.id)


async def test_unknown_user_is_refused_with_its_name(sandbox: Bench, image: str) -> None:
    environment = an_environment(template=image)
    for user, reason in (
        ("bob", "user 'bob' does not exist in the environment"),
        ("app:staff", "the group of user 'app:staff' does not exist"),
        ("65535", "has an id above 65534"),
    ):
        report = await sandbox.run(a_command("true", environment=environment, user=user))
        assert (report.outcome, reason in str(report.message)) == ("user_error", True), report
    broken = "rm /etc/passwd; mkdir /etc/passwd; rm /etc/group; mkfifo /etc/group 2>/dev/null; true"
    await output(sandbox, broken, environment, "root")
    assert (await sandbox.run(a_command("true", environment=environment))).outcome == "user_error"
    assert await output(sandbox, "id -u", environment, "0") == "0\n"
    await sandbox.destroy(environment.id)


async def test_session_keeps_its_user(sandbox: Bench) -> None:
    environment = an_environment()
    opened = a_session_command("main", "id -u; echo hi >/dev/stdout; touch made", environment=environment, user="root")
    assert (await sandbox.run(opened)).stdout.data == b"0\nhi\n"
    same = a_session_command("main", "id -u; stat -c %u made", environment=environment)
    assert (await sandbox.run(same)).stdout.data == b"0\n0\n"
    other = await sandbox.run(a_session_command("main", "id -u", environment=environment, user="nobody"))
    assert (other.outcome, "runs as user 'root'" in str(other.message)) == ("user_error", True), other
    default = await sandbox.run(a_session_command("second", "id -u", environment=environment))
    assert default.stdout.data == b"1000\n"
    await sandbox.destroy(environment.id)


async def test_owners_survive_a_snapshot(sandbox: Bench, image: str) -> None:
    for template in ("host", image):
        first, second = an_environment(template=template), an_environment(template=template)
        place = "/tmp/kept" if template == "host" else "/srv/kept"
        make = f"mkdir {place}; cp /bin/cat {place}/x; chown 5:6 {place}/x; chmod 4711 {place}/x; chown 7:8 {place}"
        await output(sandbox, f"{make}; ln -s x {place}-link; touch ~/r", first, "root")
        await output(sandbox, "touch mine", first)
        await output(sandbox, "true", second)
        await moved(sandbox, first, second)
        stats = f"stat -c '%u:%g %a' {place} {place}/x {place}-link mine ~/r"
        assert await output(sandbox, stats, second, "root") == await output(sandbox, stats, first, "root")
        assert (await output(sandbox, f"stat -c '%u:%g %a' {place}/x", second)) == "5:6 4711\n"
        await sandbox.destroy(first.id, second.id)


async def test_live_environments_share_no_id_and_ended_ones_return_theirs(sandbox: Bench) -> None:
    environments = [an_environment() for _ in range(3)]
    firsts = []
    for environment in environments:
        shown = await output(sandbox, "cat /proc/self/uid_map /proc/self/gid_map", environment)
        (inside, first, count), group = (tuple(map(int, line.split())) for line in shown.splitlines())
        assert (inside, count, group) == (0, 65_536, (0, first, 65_536))
        firsts.append(first)
    ranges = sorted(firsts)
    assert all(below + 65_536 <= above for below, above in pairwise(ranges))
    await sandbox.destroy(*(each.id for each in environments))
    again = an_environment()
    shown = await output(sandbox, "cat /proc/self/uid_map", again)
    assert int(shown.split()[1]) in firsts
    await sandbox.destroy(again.id)


async def test_root_inside_is_no_root_outside(sandbox: Bench) -> None:
    environment = an_environment()
    launcher = sandbox.launcher
    assert launcher is not None
    await output(sandbox, "sleep 60 >/dev/null 2>&1 & setsid sleep 61 >/dev/null 2>&1 & true", environment, "root")
    inside = living_descendants(launcher.pid) - {zygote_of(launcher)}
    assert len(inside) >= 3
    assert all(uid >= 0x80000000 for pid in inside for uid in ids_of(pid))
    await sandbox.destroy(environment.id)


async def test_root_inside_has_the_listed_capabilities_and_no_other(sandbox: Bench) -> None:
    kept = f"{sum(1 << each for each in KEPT_CAPABILITIES):016x}"
    empty = f"{0:016x}"
    for user, expected in (("root", [empty, kept, kept, kept, empty]), ("sandbox", [empty, empty, empty, kept, empty])):
        environment = an_environment(scope="ephemeral")
        shown = await output(sandbox, "grep ^Cap /proc/self/status", environment, user)
        assert [line.split()[1] for line in shown.splitlines()] == expected


def ids_of(pid: int) -> list[int]:
    """Return the host uids and gids of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [int(each) for line in lines if line.startswith(("Uid:", "Gid:")) for each in line.split()[1:]]
