"""Test hostile images during import, and the consistency of the template store."""

import gzip
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template, remove_template
from arl_cpu.templates.layer_unpacker import OPAQUE
from arl_cpu.templates.template import Template, TemplateError
from arl_cpu.templates.template_store import LAYER_TREE, TemplateInUse, TemplateStore, UnknownTemplate, keeps_owners
from support.conditions import eventually
from support.images import a_docker_archive, a_layer, a_link, a_symlink, an_oci_layout, member

# Of an attack that works: it would lie beside the store, in the directory of the test.
PLANTED = "planted"
UP = "../" * 12


@pytest.fixture
def store(tmp_path: Path) -> TemplateStore:
    return TemplateStore(tmp_path / "store")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Check afterwards that the store has no partial or unused layer and nothing was written outside."""
    yield
    store = TemplateStore(tmp_path / "store")
    assert not (tmp_path / PLANTED).exists()
    needed = {layer for template in store.list_templates() for layer in template.layers}
    assert {path.name for path in store.layers_dir.iterdir()} == needed


def a_budget(**changed: int) -> ImportBudget:
    return ImportBudget(**{"max_bytes": 64 << 20, "max_members": 1000, **changed})


def imported(
    store: TemplateStore, *layers: bytes, name: str = "t", budget: ImportBudget | None = None, **image: Any
) -> Template:
    path = store.directory.parent / f"image-{name}-{len(os.listdir(store.directory.parent))}"
    return import_template(store, an_oci_layout(path, layers, **image), name, budget=budget or a_budget())


def tree_of(store: TemplateStore, template: Template, layer: int = -1) -> Path:
    return store.layers_dir / template.layers[layer] / LAYER_TREE


class TestRefusedImages:
    @pytest.mark.parametrize(
        "members",
        [
            [member(f"{UP}{PLANTED}")],
            [member(f"a/../{UP}{PLANTED}")],
            [a_link("a", f"{UP}etc/passwd")],
            [a_link("a", "/etc/passwd")],
            [a_symlink("s", "/etc/passwd"), a_link("a", "s")],
            [member(".wh...")],
            [member("d/.wh...")],
            [member(".wh.x/y")],
            [member("file", "x"), member("file/below")],
            [a_symlink("gone", "/nowhere"), member("gone/below")],
            [a_symlink("a", "b"), a_symlink("b", "a"), member("a/x")],
            [a_symlink("proc", "/proc/self/root"), member("proc/x/y", "z")],
            [member("x" * 300)],
        ],
        ids=lambda members: members[-1][0].name[:40],
    )
    def test_member_path_outside_the_layer_is_refused(self, store: TemplateStore, members: list[Any]) -> None:
        with pytest.raises(TemplateError):
            imported(store, a_layer(*members))
        assert store.list_templates() == ()

    def test_decompression_bomb_is_refused(self, store: TemplateStore) -> None:
        """10 GiB of zeros compress to 10 MiB."""
        layer = a_layer(member("bomb", bytes(128 << 20)))
        with pytest.raises(TemplateError, match="more than 64 MiB; allow more with --max-mib"):
            imported(store, layer)

    def test_sparse_file_counts_with_its_full_size(self, store: TemplateStore) -> None:
        sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}
        sparse["GNU.sparse.realsize"] = str(10 << 30)
        content = b"1\n0\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0")
        with pytest.raises(TemplateError, match="more than 64 MiB"):
            imported(store, a_layer(member("s", content, pax_headers=sparse)))

    def test_image_with_too_many_files_is_refused(self, store: TemplateStore) -> None:
        with pytest.raises(TemplateError, match="more than 10 files; allow more with --max-members"):
            imported(store, a_layer(*(member(f"{n}") for n in range(11))), budget=a_budget(max_members=10))

    @pytest.mark.parametrize("what", ["digest", "diff_id", "truncated", "garbage", "zstd"])
    def test_layer_that_differs_from_its_digest_is_refused(
        self, store: TemplateStore, tmp_path: Path, what: str
    ) -> None:
        layer = a_layer(member("a", os.urandom(9000)))
        path = an_oci_layout(tmp_path / "image", [layer])
        blob = max((path / "blobs/sha256").iterdir(), key=lambda each: each.stat().st_size)
        content = {
            "digest": gzip.compress(layer, 1, mtime=1),
            "diff_id": gzip.compress(a_layer(member("b", "x"))),
            "truncated": blob.read_bytes()[:-2000],
            "garbage": b"no archive",
            "zstd": b"\x28\xb5\x2f\xfd0000",
        }[what]
        blob.write_bytes(content)
        with pytest.raises(TemplateError, match="damaged"):
            import_template(store, path, "t", budget=a_budget())
        assert store.list_templates() == ()

    def test_docker_layer_unknown_to_the_configuration_is_refused(self, store: TemplateStore, tmp_path: Path) -> None:
        """Archives from `docker save` contain no other digests."""
        path = a_docker_archive(tmp_path / "image.tar", [a_layer(member("a", "1"))])
        content = path.read_bytes()
        path.write_bytes(content.replace(a_layer(member("a", "1")), a_layer(member("a", "2"))))
        assert path.read_bytes() != content
        with pytest.raises(TemplateError, match="damaged"):
            import_template(store, path, "t", budget=a_budget())

    @pytest.mark.parametrize("content", [b"", b"x" * 2000, b"{}", b"[" * 100_000])
    def test_invalid_image_is_refused(self, store: TemplateStore, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "image.tar").write_bytes(content)
        layout = an_oci_layout(tmp_path / "layout", [a_layer()])
        (layout / "index.json").write_bytes(content)
        for path in (tmp_path / "image.tar", layout, tmp_path / "missing"):
            with pytest.raises(TemplateError):
                import_template(store, path, "t", budget=a_budget())
        store.create_directories()

    def test_docker_archive_with_outside_references_is_refused(self, store: TemplateStore, tmp_path: Path) -> None:
        path = a_docker_archive(tmp_path / "image.tar", [a_layer()])
        manifest = '[{"Config": "../../../../etc/passwd", "Layers": ["/etc/passwd"]}]'
        path.write_bytes(a_layer(member("manifest.json", manifest)))
        with pytest.raises(TemplateError, match="does not contain"):
            import_template(store, path, "t", budget=a_budget())


class TestContainedImages:
    def test_symlinks_are_followed_only_inside_the_layer(self, store: TemplateStore, tmp_path: Path) -> None:
        """An absolute link is resolved inside the layer's own directory."""
        (tmp_path / "outside").mkdir()
        outside = str(tmp_path / "outside")
        layer = a_layer(a_symlink("way", outside), member(f"{outside.lstrip('/')}/"), member(f"way/{PLANTED}", "x"))
        template = imported(store, layer)
        assert list((tmp_path / "outside").iterdir()) == []
        assert (tree_of(store, template) / outside.lstrip("/") / PLANTED).read_text() == "x"

    def test_layer_does_not_write_through_symlinks_of_lower_layers(self, store: TemplateStore, tmp_path: Path) -> None:
        template = imported(store, a_layer(a_symlink("way", str(tmp_path))), a_layer(member(f"way/{PLANTED}", "x")))
        assert (tree_of(store, template) / "way" / PLANTED).read_text() == "x"
        assert (tree_of(store, template, 0) / "way").is_symlink()

    def test_file_replaces_a_symlink_and_not_its_target(self, store: TemplateStore, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("mine")
        template = imported(store, a_layer(a_symlink("f", str(victim)), member("f", "x"), a_symlink("f", "y")))
        assert victim.read_text() == "mine"
        assert os.readlink(tree_of(store, template) / "f") == "y"

    def test_devices_and_pipes_are_removed_and_set_uid_bits_only_without_users(self, store: TemplateStore) -> None:
        kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
        nodes = [member(f"n{n}", type=kind, devmajor=1, devminor=3) for n, kind in enumerate(kinds)]
        template = imported(store, a_layer(*nodes, member("su", "x", mode=0o6755), member("d/", mode=0o7777)))
        tree = tree_of(store, template)
        modes = {"su": 0o6755, "d": 0o7777} if keeps_owners() else {"su": 0o755, "d": 0o1777}
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tree.iterdir()} == modes
        assert template.left_out == 3

    @pytest.mark.root
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    def test_files_of_a_layer_have_its_owners_or_those_of_the_only_user(self, store: TemplateStore) -> None:
        layer = a_layer(member("a/b/c", "x", uid=7), a_symlink("s", "x"), member("d/", uid=8), a_link("l", "a/b/c"))
        tree = tree_of(store, imported(store, layer))
        owners = {path.lstat().st_uid for path in (tree, *tree.rglob("*"))}
        assert owners == ({0, 7, 8} if keeps_owners() else {1000})
        assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


class TestLayers:
    def test_whiteouts_are_converted_to_overlayfs_marks(self, store: TemplateStore) -> None:
        layer = a_layer(
            member(".wh.gone"),
            *(member("kept", "x"), member(".wh.kept")),
            *(member("new/"), member("new/a"), member(".wh.new")),
            *(member(".wh.again"), member("again/"), member("again/b")),
            *(member("d/.wh..wh..opq"), member("d/c")),
            member("other/.wh..wh.plnk"),
        )
        tree = tree_of(store, imported(store, layer))
        gone = (tree / "gone").lstat()
        assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
        assert (tree / "kept").read_text() == "x"
        opaque = {path.name for path in tree.iterdir() if path.is_dir() and OPAQUE in os.listxattr(path)}
        assert opaque == {"new", "again", "d"}
        assert {path.name for path in tree.iterdir()} == {"gone", "kept", "new", "again", "d"}

    def test_hard_links_times_and_modes_are_preserved(self, store: TemplateStore) -> None:
        layer = a_layer(member("a", "x", mode=0o555), a_link("b", "a"), member("d/", mode=0o555), member("d/e"))
        tree = tree_of(store, imported(store, layer))
        assert (tree / "a").samefile(tree / "b")
        mode = 0o555 if keeps_owners() else 0o755
        assert [stat.S_IMODE((tree / name).stat().st_mode) for name in ("a", "d")] == [mode, mode]
        assert {(tree / name).stat().st_mtime for name in ("a", "d", "d/e")} == {1_700_000_000}

    def test_all_three_image_formats_give_the_same_template(self, store: TemplateStore, tmp_path: Path) -> None:
        layers = [a_layer(member("a", "1")), a_layer(member("b", "2"))]
        layout = an_oci_layout(tmp_path / "layout", layers, config={"Env": ["A=1"], "WorkingDir": "/w"})
        with tarfile.open(tmp_path / "layout.tar", "w") as archive:
            archive.add(layout, ".")
        docker = a_docker_archive(tmp_path / "docker.tar", layers, config={"Env": ["A=1"], "WorkingDir": "/w"})
        made = [
            import_template(store, path, f"t{number}", budget=a_budget())
            for number, path in enumerate((layout, tmp_path / "layout.tar", docker))
        ]
        assert len({(template.layers, template.env["A"], template.workdir, template.digest) for template in made}) == 1
        assert len(list(store.layers_dir.iterdir())) == 2

    def test_imported_directory_is_copied_and_keeps_its_digest(self, store: TemplateStore, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "root").mkdir(parents=True)
        (tree / "root" / "a").write_text("1")
        os.link(tree / "root" / "a", tree / "b")
        os.mkfifo(tree / "pipe")
        first = import_template(store, tree, "t", budget=a_budget())
        assert import_template(store, tree, "t", budget=a_budget()).digest == first.digest
        copy = tree_of(store, first)
        assert ((copy / "b").read_text(), (copy / "b").samefile(copy / "root" / "a")) == ("1", True)
        assert (first.home, sorted(path.name for path in copy.iterdir())) == ("/root", ["b", "root"])
        (tree / "b").write_text("2")
        assert (copy / "b").read_text() == "1"
        assert import_template(store, tree, "t", budget=a_budget()).digest != first.digest

    def test_too_large_directory_is_refused(self, store: TemplateStore, tmp_path: Path) -> None:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a").write_bytes(bytes(1 << 20))
        with pytest.raises(TemplateError, match="--max-mib"):
            import_template(store, tmp_path / "tree", "t", budget=a_budget(max_bytes=1 << 20))


class TestStore:
    def test_existing_layer_is_not_unpacked_again(self, store: TemplateStore) -> None:
        base, top = a_layer(member("a", "1")), a_layer(member("b", "2"))
        before = (tree_of(store, imported(store, base, name="one")) / "a").stat().st_ino
        both = imported(store, base, top, name="two", budget=a_budget(max_bytes=len(top)))
        assert (tree_of(store, both, 0) / "a").stat().st_ino == before

    def test_layer_is_deleted_with_its_last_template(self, store: TemplateStore) -> None:
        base = a_layer(member("a", "1"))
        imported(store, base, name="one")
        imported(store, base, a_layer(member("b")), name="two")
        remove_template(store, "two")
        assert len(list(store.layers_dir.iterdir())) == 1
        remove_template(store, "one")
        assert list(store.layers_dir.iterdir()) == []
        with pytest.raises(UnknownTemplate):
            remove_template(store, "one")

    def test_template_in_use_is_kept_until_closed(self, store: TemplateStore) -> None:
        imported(store, a_layer(member("a", "1")))
        used = store.open("t")
        with pytest.raises(TemplateInUse):
            remove_template(store, "t")
        other = imported(store, a_layer(member("a", "2")))
        assert used.template.layers != other.layers
        assert (tree_of(store, used.template) / "a").read_text() == "1"
        used.close()
        imported(store, a_layer(member("a", "2")))
        assert not tree_of(store, used.template).exists()

    def test_template_in_use_survives_a_new_import_of_its_name(self, store: TemplateStore) -> None:
        imported(store, a_layer(member("a", "1")))
        used = store.open("t")
        imported(store, a_layer(member("a", "2")))
        with pytest.raises(TemplateInUse):
            remove_template(store, "t")
        used.close()
        remove_template(store, "t")
        assert list(store.records_dir.iterdir()) == []

    def test_unreadable_record_does_not_affect_other_templates(self, store: TemplateStore) -> None:
        kept = imported(store, a_layer(member("a", "1")), name="bad")
        store.record_path("bad").write_text("{")
        imported(store, a_layer(member("b", "2")), name="good")
        assert [each.name for each in store.list_templates()] == ["good"]
        assert list(store.damaged_records()) == ["bad"]
        assert tree_of(store, kept).exists(), "another version may know what it says"
        arguments = [sys.executable, "-m", "arl_cpu.templates", str(store.directory), "list"]
        shown = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert '"good"' in shown.stdout
        assert "bad" in shown.stderr
        remove_template(store, "bad")
        assert [path.name for path in store.layers_dir.iterdir()] == list(store.list_templates()[0].layers)

    def test_layer_with_an_opaque_root_drops_lower_layers(self, store: TemplateStore) -> None:
        top = a_layer(member(".wh..wh..opq"), member("b", "2"))
        template = imported(store, a_layer(member("a", "1")), top, a_layer(member("c", "3")))
        assert len(template.layers) == 2
        assert (tree_of(store, template, 0) / "b").exists()

    def test_killed_import_leaves_no_template(self, store: TemplateStore, tmp_path: Path) -> None:
        layout = an_oci_layout(tmp_path / "layout", [a_layer(member("a", bytes(1 << 20)))])
        arguments = [str(store.directory), "import", str(layout), "t", "100", "100"]
        command = f"""
import os, signal, sys
from arl_cpu.templates import __main__, layer_store
layer_store.drain = lambda stream: os.kill(os.getpid(), {int(signal.SIGKILL)})
sys.exit(__main__.main({arguments!r}))
"""
        killed = subprocess.run([sys.executable, "-c", command], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert [path.name.startswith(".partial-") for path in store.layers_dir.iterdir()] == [True]
        assert store.list_templates() == ()
        assert import_template(store, layout, "t", budget=a_budget()).layers

    async def test_concurrent_imports_run_one_after_the_other(self, store: TemplateStore, tmp_path: Path) -> None:
        store.create_directories()
        layout = an_oci_layout(tmp_path / "layout", [a_layer(member("a", "1"))])
        made: list[Template] = []

        def make(name: str) -> None:
            made.append(import_template(store, layout, name, budget=a_budget()))

        threads = [threading.Thread(target=make, args=(name,)) for name in ("one", "two")]
        with store.exclusive_lock():
            for thread in threads:
                thread.start()
            await eventually(lambda: waiting_for(store.directory / "lock") == 2)
            assert store.list_templates() == ()
        for thread in threads:
            thread.join()
        assert {template.name for template in store.list_templates()} == {"one", "two"}
        assert made[0].layers == made[1].layers


def waiting_for(path: Path) -> int:
    """Return the number of processes that wait for the file's lock, from `/proc/locks`."""
    inode = str(path.stat().st_ino)
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum("->" in line and line[6].endswith(f":{inode}") for line in lines)
