"""Test environments that start from a template, including hostile images."""

import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arl_cpu.contract.environment_access import FileOperationError
from arl_cpu.contract.executor import EnvironmentSpec, ExecutionReport, NodeCapability
from arl_cpu.launcher.isolation.users import KEPT_CAPABILITIES
from arl_cpu.launcher.linux.id_ranges import can_map_ranges
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template, remove_template
from arl_cpu.templates.template import Template
from arl_cpu.templates.template_store import TemplateInUse, TemplateStore
from support.conditions import eventually
from support.images import a_layer, a_root, a_symlink, an_oci_layout, member, packed
from support.sandbox import HAS_USERS, Bench, a_bench, a_command, a_program, an_environment
from support.work import moved

PYTHON = Path("/usr/bin/python3")
ROOT_ROW = "root:x:0:0:root:/root:/bin/sh\n"
SINCE_LINUX = (6, 6)
USED_AT_START = ("collections", "encodings", "importlib", "lib-dynload", "re")


@pytest.fixture(scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """Provide a launcher with the driver that supports templates."""
    async with a_bench(tmp_path_factory.mktemp("sandbox"), "namespaces") as bench:
        if bench.enforcement["templates"] == "absent":
            kernel = tuple(map(int, os.uname().release.split(".")[:2]))
            (pytest.skip if kernel < SINCE_LINUX else pytest.fail)(capability(bench).reason)
        yield bench


@pytest.fixture(scope="module")
async def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Build a layer with a shell and a few programs."""
    files = {"root/.profile": "", "data/kept": "below\n", "data/gone": "x", "data/old/a": "x"}
    return packed(a_root(tmp_path_factory.mktemp("root"), files=files))


@pytest.fixture(scope="module")
async def plain(sandbox: Bench, base: bytes) -> Template:
    layer = a_layer(member("data/.wh.gone"), member("data/old/"), member("data/old/.wh..wh..opq"), member("data/new"))
    config = {"Env": ["COLOUR=blue", "PATH=/nowhere:/bin"], "WorkingDir": "/data"}
    return imported(sandbox, "plain", base, layer, config=config)


@pytest.fixture
def changeable(sandbox: Bench) -> None:
    """Skip the test if files of a template are read-only."""
    if sandbox.enforcement["templates"] != "enforced":
        pytest.skip(capability(sandbox).reason)


@pytest.fixture
async def small(sandbox: Bench, plain: Template) -> AsyncIterator[EnvironmentSpec]:
    environment = an_environment(template=plain.name, disk_mib=8)
    yield environment
    await sandbox.destroy(environment.id)


def imported(sandbox: Bench, name: str, *layers: bytes, **image: Any) -> Template:
    store = store_of(sandbox)
    path = an_oci_layout(store.directory.parent / f"image-{name}", layers, **image)
    try:
        return import_template(store, path, name, budget=ImportBudget(max_bytes=1 << 30, max_members=10_000))
    finally:
        shutil.rmtree(path)


def store_of(sandbox: Bench) -> TemplateStore:
    assert sandbox.launcher is not None
    return TemplateStore(sandbox.launcher.directory / "templates")


def capability(sandbox: Bench) -> NodeCapability:
    return next(each for each in sandbox.state.capabilities if each.name == "templates")


async def shell(
    sandbox: Bench, text: str, environment: EnvironmentSpec | None = None, **changes: Any
) -> ExecutionReport:
    environment = environment or an_environment(scope="ephemeral", template="plain")
    return await sandbox.run(a_command("sh", "-c", text, environment=environment, **changes))


def digest_of(tree: Path) -> str:
    """Return a digest of all names, types, modes, owners, times and contents in the tree."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        found = path.lstat()
        digest.update(f"{path} {found.st_mode} {found.st_uid} {found.st_nlink} {found.st_mtime_ns}".encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.mark.usefixtures("plain")
class TestTemplateFiles:
    async def test_layers_appear_as_one_tree_without_hidden_files(self, sandbox: Bench) -> None:
        report = await shell(sandbox, "cat kept; ls; ls old")
        assert report.stdout.data == b"below\nkept\nnew\nold\n", report

    async def test_action_gets_image_variables_and_no_host_files(self, sandbox: Bench) -> None:
        report = await shell(sandbox, 'echo "$PWD $HOME $COLOUR $PATH"; ls /; ls -d /usr /etc/shadow /sys')
        shown = report.stdout.data.decode().splitlines()
        assert shown[0] == "/data /root blue /nowhere:/bin"
        assert {"bin", "data", "dev", "etc", "proc", "root", "tmp", "workspace"} <= set(shown[1:])
        assert not {"home", "usr", "var", "layers", "area"} & set(shown[1:])
        assert b"/usr" in report.stderr.data

    async def test_variables_and_directory_of_the_action_override_the_image(self, sandbox: Bench) -> None:
        report = await shell(sandbox, "echo $COLOUR; pwd", env={"COLOUR": "red"}, cwd="old")
        assert report.stdout.data == b"red\n/data/old\n"

    @pytest.mark.usefixtures("changeable")
    async def test_image_without_accounts_names_root_and_others_keep_theirs(self, sandbox: Bench, base: bytes) -> None:
        accounts = {"etc/passwd": "boss:x:0:0::/boss:/bin/sh\nsandbox:x:7:7::/:/bin/sh", "etc/group": "app:x:0:\n"}
        layer = a_layer(*(member(path, text) for path, text in accounts.items()))
        imported(sandbox, "named", base, layer, config={"WorkingDir": "/srv/app"})
        cases = [("plain", "root root", ROOT_ROW), ("named", "boss app", accounts["etc/passwd"])]
        if not can_map_ranges():  # one user, which has a name of its own
            cases = [("plain", "sandbox sandbox", f"{ROOT_ROW}sandbox:x:1000:1000::/root:/bin/sh\n")]
        for name, names, rows in cases:
            environment = an_environment(scope="ephemeral", template=name)
            report = await shell(sandbox, "ls -d /dev/pts/ptmx; echo $(id -un) $(id -gn); cat /etc/passwd", environment)
            assert report.stdout.data.decode() == f"/dev/pts/ptmx\n{names}\n{rows}", report

    @pytest.mark.usefixtures("changeable")
    async def test_files_are_written_to_and_fetched_from_the_image_directory(self, sandbox: Bench) -> None:
        report = await shell(sandbox, "cat in >out; cat kept >>out", files={"in": b"1\n"}, fetch=("out", "kept"))
        assert report.files == {"out": b"1\nbelow\n", "kept": b"below\n"}

    @pytest.mark.usefixtures("changeable")
    async def test_every_file_can_be_changed_by_root_inside(self, sandbox: Bench) -> None:
        text = """
            set -e
            echo above >kept; echo x >/etc/release; rm -r old; mkdir old; echo y >old/b; mv new /moved
            chmod 700 /bin/ls; rm /bin/mv; mkdir -p /opt/x; touch /x /dev/shm/x /tmp/x ~/x
            cat kept /etc/release; ls old; stat -c %u:%a /bin/ls
        """
        report, owner = await shell(sandbox, text), 0 if can_map_ranges() else 1000
        assert (report.outcome, report.stdout.data) == ("ok", b"above\nx\nb\n%d:700\n" % owner), report

    @pytest.mark.usefixtures("changeable")
    @pytest.mark.parametrize(
        "damage", ["rm -r /data", "mv /data /d", "mv /data /d; echo >/data", "rm -r /data; ln -s x /data"]
    )
    async def test_missing_working_directory_is_created_again(
        self, sandbox: Bench, small: EnvironmentSpec, damage: str
    ) -> None:
        await shell(sandbox, damage, small)
        report = await shell(sandbox, "pwd; cat in", small, files={"in": b"uploaded"}, fetch=("in",))
        assert (report.stdout.data, report.files) == (b"/data\nuploaded", {"in": b"uploaded"}), report
        assert "created again" in str(report.message)

    @pytest.mark.usefixtures("changeable")
    async def test_changes_can_be_moved_to_another_environment(self, sandbox: Bench) -> None:
        source, target = an_environment(template="plain"), an_environment(template="plain")
        text = (
            "rm -r old; mkdir old; echo y >old/b; rm kept; mkdir kept; chmod 700 /bin/ls; rm /bin/cat; echo t >/tmp/t"
        )
        await shell(sandbox, text, source)
        await shell(sandbox, "touch old/c /tmp/u", target)
        await moved(sandbox, source, target)
        report = await shell(sandbox, "ls old kept /tmp /dev/shm; stat -c %a /bin/ls; ls /bin/cat", target)
        assert report.stdout.data == b"/dev/shm:\n\n/tmp:\nt\nu\n\nkept:\n\nold:\nb\n700\n", report
        await sandbox.destroy(source.id, target.id)

    @pytest.mark.usefixtures("changeable")
    async def test_changes_cannot_be_moved_to_a_different_template(self, sandbox: Bench, base: bytes) -> None:
        imported(sandbox, "anew", base)
        source = an_environment(template="anew")
        await shell(sandbox, "touch /f", source)
        imported(sandbox, "anew", base, a_layer(member("other")))
        target = an_environment(template="anew")
        await shell(sandbox, "true", target)
        with pytest.raises(FileOperationError, match="imported again"):
            await moved(sandbox, source, target)
        await sandbox.destroy(source.id, target.id)
        remove_template(store_of(sandbox), "anew")

    async def test_dev_and_proc_belong_to_the_sandbox(self, sandbox: Bench) -> None:
        text = "ls /dev; cat /dev/null /proc/kcore; ls -d /proc/[0-9]*; touch /dev/x || echo refused"
        report = await shell(sandbox, text)
        assert b"full\nmqueue\nnull\nptmx\npts\nrandom\nshm\n" in report.stdout.data
        assert report.stdout.data.endswith(b"refused\n")
        assert report.stdout.data.count(b"/proc/") < 5

    async def test_mountinfo_does_not_reveal_the_layer_directories(self, sandbox: Bench) -> None:
        report = await shell(sandbox, "cat /proc/self/mountinfo")
        assert report.outcome == "ok"
        assert str(store_of(sandbox).directory).encode() not in report.stdout.data
        assert b"sha256" not in report.stdout.data


@pytest.mark.usefixtures("plain")
class TestSource:
    async def test_source_in_an_image_without_python_is_not_the_fault_of_the_program(self, sandbox: Bench) -> None:
        report = await sandbox.run(
            a_program("print(1)", environment=an_environment(scope="ephemeral", template="plain"))
        )
        assert (report.outcome, report.reason) == ("infra_error", "setup_failed")
        assert report.message is not None
        assert "no python3 in its PATH" in report.message

    async def test_template_without_python_is_not_the_fault_of_a_later_program_either(self, sandbox: Bench) -> None:
        environment = an_environment(template="plain")
        await sandbox.run(a_command("true", environment=environment))
        report = await sandbox.run(a_program("print(1)", environment=environment))
        assert (report.outcome, report.reason) == ("infra_error", "setup_failed")
        await sandbox.destroy(environment.id)

    async def test_program_cannot_remove_python_to_escape_its_outcome(self, sandbox: Bench, tmp_path: Path) -> None:
        root = a_root(tmp_path / "root", programs=("sh", "rm"), files={"usr/bin/python3": "#!/bin/sh\nexit 3\n"})
        (root / "usr/bin/python3").chmod(0o755)
        imported(sandbox, "removable", packed(root))
        environment = an_environment(template="removable")
        await sandbox.run(a_command("sh", "-c", "rm /usr/bin/python3", environment=environment))
        report = await sandbox.run(a_program("print(1)", environment=environment))
        assert report.outcome == "user_error", report
        await sandbox.destroy(environment.id)

    @pytest.mark.skipif(not PYTHON.exists(), reason="this machine has no /usr/bin/python3 to make an image of")
    async def test_source_runs_with_the_python_of_the_image(self, sandbox: Bench, tmp_path: Path) -> None:
        library = next(Path("/usr/lib").glob("python3.*/os.py")).parent
        root = a_root(tmp_path / "root", programs=("python3", "sh"), files={"usr/lib/marker.py": "WHERE = 'image'"})
        packages = [path for path in library.iterdir() if path.is_dir() and path.name not in USED_AT_START]
        ignored = shutil.ignore_patterns(*(path.name for path in packages))
        shutil.copytree(library, root / "usr/lib" / library.name, ignore=ignored, ignore_dangling_symlinks=True)
        (root / "usr/lib" / library.name / "only_here.py").write_text("WHERE = 'image'")
        (root / "usr/bin").mkdir(parents=True)
        (root / "bin/python3").rename(root / "usr/bin/python3")
        imported(sandbox, "python", packed(root))
        source = "import sys, only_here, local\nprint(only_here.WHERE, local.X, __name__, sys.argv)\n1 / 0"
        report = await sandbox.run(
            a_program(
                source, files={"local.py": b"X = 7"}, environment=an_environment(scope="ephemeral", template="python")
            )
        )
        assert report.stdout.data == b"image 7 __main__ ['main.py']\n", report.stderr.data.decode()
        assert (report.outcome, report.exit_code) == ("user_error", 1)
        trace = report.stderr.data.decode().splitlines()
        assert trace[:3] == [
            "Traceback (most recent call last):",
            '  File "/workspace/main.py", line 3, in <module>',
            "    1 / 0",
        ]


@pytest.mark.usefixtures("plain")
class TestLimits:
    @pytest.mark.usefixtures("changeable")
    async def test_disk_limit_applies_to_every_path(self, sandbox: Bench, small: EnvironmentSpec) -> None:
        for place in ("/etc/x", "/data/x", "/tmp/x", "/dev/shm/x", "/x"):
            report = await shell(sandbox, f"dd if=/dev/zero of={place} bs=1048576 count=20", small)
            assert (report.outcome, report.reason) == ("limit_exceeded", "disk"), place
            assert (await shell(sandbox, f"rm {place}", small)).outcome == "ok"

    @pytest.mark.usefixtures("changeable")
    async def test_disk_limit_applies_to_copied_up_files(self, sandbox: Bench, base: bytes) -> None:
        imported(sandbox, "large", base, a_layer(member("large", bytes(16 << 20))))
        report = await shell(
            sandbox, "echo x >>/large", an_environment(scope="ephemeral", template="large", disk_mib=8)
        )
        assert report.outcome == "user_error"  # what was copied is gone again, so nothing is full
        assert b"No space left on device" in report.stderr.data

    @pytest.mark.usefixtures("changeable")
    async def test_number_of_files_is_limited(self, sandbox: Bench) -> None:
        environment = an_environment(scope="ephemeral", template="plain", disk_mib=16)
        text = "i=0; while [ $i -lt 6000 ]; do : >/data/$i || exit 1; i=$((i+1)); done"
        report = await shell(sandbox, text, environment, timeout_s=60)
        assert (report.outcome, report.reason) == ("limit_exceeded", "disk")


@pytest.mark.usefixtures("plain")
class TestSeparation:
    async def test_repeated_layer_counts_at_its_highest_position(self, sandbox: Bench, base: bytes) -> None:
        first, second = (a_layer(member("data/which", text)) for text in ("first", "second"))
        imported(sandbox, "repeated", base, first, second, first)
        environment = an_environment(scope="ephemeral", template="repeated")
        assert (await shell(sandbox, "cat /data/which", environment)).stdout.data == b"first"

    @pytest.mark.usefixtures("changeable")
    async def test_environments_of_one_template_are_separate_and_leave_it_unchanged(self, sandbox: Bench) -> None:
        before = digest_of(store_of(sandbox).layers_dir)
        environments = [an_environment(template="plain") for _ in range(2)]
        write = "rm -rf old /root; echo mine >>written; echo x >/bin/new; ls /bin/new /data"
        for environment in environments:
            assert (await shell(sandbox, write, environment)).outcome == "ok"
            assert (await shell(sandbox, "cat written", environment)).stdout.data == b"mine\n"
        await sandbox.destroy(*(environment.id for environment in environments))
        assert digest_of(store_of(sandbox).layers_dir) == before

    async def test_environment_keeps_its_template_after_a_new_import(self, sandbox: Bench, base: bytes) -> None:
        imported(sandbox, "kept", base, a_layer(member("data/which", "first")))
        environment = an_environment(template="kept")
        assert (await shell(sandbox, "cat /data/which", environment)).stdout.data == b"first"
        with pytest.raises(TemplateInUse):
            remove_template(store_of(sandbox), "kept")
        imported(sandbox, "kept", base, a_layer(member("data/which", "second")))
        assert (await shell(sandbox, "cat /data/which", environment)).stdout.data == b"first"
        other = replace(environment, template="plain")
        refused = await shell(sandbox, "true", other)
        assert (refused.outcome, refused.reason) == ("infra_error", "setup_failed")
        unsaid = replace(environment, template=None)
        assert (await shell(sandbox, "cat /data/which", unsaid)).stdout.data == b"first"
        await sandbox.destroy(environment.id)
        await eventually(lambda: is_removed(sandbox, "kept"))

    async def test_environment_mounts_are_invisible_outside(self, sandbox: Bench, small: EnvironmentSpec) -> None:
        await shell(sandbox, "true", small)
        assert str(store_of(sandbox).directory) not in Path("/proc/self/mountinfo").read_text()

    async def test_unknown_template_is_reported_with_available_templates(self, sandbox: Bench) -> None:
        report = await shell(sandbox, "true", an_environment(template="moon"))
        assert (report.outcome, report.reason) == ("infra_error", "setup_failed")
        assert report.message is not None
        assert "template 'moon' is not available on this node. Available: host, " in report.message
        assert "plain" in report.message


class TestHostileImages:
    async def test_symlinks_at_mount_points_are_replaced(self, sandbox: Bench, base: bytes) -> None:
        """Before the root changes, an absolute link would point to a host directory."""
        links = [a_symlink(name, f"/{target}") for name, target in (("dev", "etc"), ("proc", "usr"), ("tmp", "bin"))]
        imported(sandbox, "links", base, a_layer(*links, a_symlink("workspace", "/data")))
        text = "ls /proc/self/stat /dev/null && ls -d /dev /proc /tmp && pwd"
        report = await shell(sandbox, text, an_environment(scope="ephemeral", template="links"))
        assert report.outcome == "ok", report
        assert report.stdout.data.endswith(b"/dev\n/proc\n/tmp\n/data\n")

    @pytest.mark.parametrize("place", ["dev", "proc", "tmp"])
    async def test_file_at_a_mount_point_is_replaced(self, sandbox: Bench, base: bytes, place: str) -> None:
        imported(sandbox, f"file-{place}", base, a_layer(member(place, "x")))
        environment = an_environment(scope="ephemeral", template=f"file-{place}")
        assert (await shell(sandbox, f"ls /{place}/ && touch /tmp/x", environment)).outcome == "ok"

    @pytest.mark.parametrize("workdir", ["/bin/sh", "/data/kept/x", "/dev/x"])
    async def test_impossible_working_directory_is_an_infrastructure_error(
        self, sandbox: Bench, base: bytes, workdir: str
    ) -> None:
        imported(sandbox, "workdir", base, config={"WorkingDir": workdir})
        report = await shell(sandbox, "true", an_environment(scope="ephemeral", template="workdir"))
        assert (report.outcome, report.reason) == ("infra_error", "setup_failed")

    @HAS_USERS
    async def test_set_uid_program_of_an_image_gives_rights_only_inside(self, sandbox: Bench, base: bytes) -> None:
        sh = Path("/bin/sh").read_bytes()
        imported(sandbox, "setuid", base, a_layer(member("bin/su", sh, mode=0o6755)))
        environment = an_environment(scope="ephemeral", template="setuid")
        report = await shell(
            sandbox, "su -p -c 'id; cat /proc/self/status /proc/1/environ'", environment, user="1000:1000"
        )
        assert report.stdout.data.startswith(b"uid=1000 gid=1000 euid=0(root) egid=0(root)"), report
        assert f"CapEff:\t{sum(1 << each for each in KEPT_CAPABILITIES):016x}\n".encode() in report.stdout.data
        assert b"Permission denied" in report.stderr.data

    @pytest.mark.usefixtures("changeable")
    async def test_agent_does_not_import_modules_of_the_image(self, sandbox: Bench, base: bytes) -> None:
        """The agent's modules are outside the image; files at the same paths belong to the image."""
        trap = b"import os\nos.kill(1, 9)\nopen('/data/trapped', 'w')\n"
        prefix = os.path.dirname(os.__file__).lstrip("/")
        names = ("encodings/cp1252.py", "traceback.py", "getpass.py", "posixpath.py", "site.py", "json/__init__.py")
        layer = a_layer(*(member(f"{prefix}/{name}", trap) for name in names))
        imported(sandbox, "trap", base, layer, config={"WorkingDir": f"/{prefix}"})
        environment = an_environment(template="trap")
        for text in ("true", "ls /data", "exit 3"):
            report = await shell(sandbox, text, environment, files={"in": b"x"}, fetch=("in",))
            assert report.outcome in ("ok", "user_error")
            assert b"trapped" not in report.stdout.data
        await sandbox.destroy(environment.id)


def is_removed(sandbox: Bench, name: str) -> bool:
    try:
        remove_template(store_of(sandbox), name)
    except TemplateInUse:
        return False
    return True
