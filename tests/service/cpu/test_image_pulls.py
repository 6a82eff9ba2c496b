"""Test the process that pulls images, against a real registry."""

import hashlib
import json
import platform
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from arl_core.images.pull_planning import ImageFailure
from arl_cpu.images.pull_messages import (
    ImagePulled,
    ImageResolved,
    PullEvent,
    PullFailure,
    PullProgress,
    PullRequest,
    decode_event,
)
from arl_cpu.images.puller import DOWNLOADS
from arl_cpu.templates.oci_image import ARCHITECTURES
from arl_cpu.templates.template import Template
from arl_cpu.templates.template_store import LAYER_TREE, TemplateStore, keeps_owners
from support.images import a_layer, a_symlink, member
from support.registry import Registry, a_proxy, a_registry

HTPASSWD = "user:$2y$04$CTqaV/l.ddZYY/KJYrwVM.xSussfOZckcMHk5CJSq2p1bYdmbIo0."
BASE = a_layer(member("etc/"), member("etc/base", "base\n"), member("gone", "x"))
TOP = a_layer(member(".wh.gone"), member("etc/top", bytes(range(256)) * 4000))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with a_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> TemplateStore:
    return TemplateStore(tmp_path / "templates")


class PullRun:
    """A pull in a process of its own."""

    def __init__(self, store: TemplateStore, image: str, registries: Path, **limits: Any) -> None:
        request = {"max_mib": 256, "max_members": 1000, "parallel": 3, "give_up_s": 0.3, **limits}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "arl_cpu.images", "pull"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._send(
            json.dumps(
                asdict(PullRequest(store=str(store.directory), image=image, registries=str(registries), **request))
            )
        )
        self.events: list[PullEvent] = []

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def read_until(self, *kinds: type) -> PullEvent:
        """Return the next event of these kinds, or the last event."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(decode_event(line))
            if isinstance(self.events[-1], (PullFailure, *kinds)):
                break
        return self.events[-1]

    def go(self) -> PullEvent:
        if isinstance(self.read_until(ImageResolved), ImageResolved):
            self._send("go")
            self.read_until(ImagePulled)
        self._process.communicate()
        return self.events[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def settings_file(directory: Path, hosts: Mapping[str, str]) -> Path:
    """Write a file of registries: lines of settings by host."""
    text = "".join(f'[registries."{host}"]\nplain_http = true\n{lines}\n' for host, lines in hosts.items())
    path = directory / "registries.toml"
    path.write_text(text)
    return path


def pull(store: TemplateStore, host: str, image: str, lines: str = "", **limits: Any) -> list[PullEvent]:
    registries = settings_file(store.directory.parent, {host: lines})
    run = PullRun(store, f"{host}/{image}", registries, **limits)
    run.go()
    return run.events


def pulled(store: TemplateStore, host: str, image: str, lines: str = "", **limits: Any) -> Template:
    events = pull(store, host, image, lines, **limits)
    assert isinstance(events[-1], ImagePulled), events
    return next(each for each in store.list_templates() if each.name == f"{host}/{image}")


def failure(store: TemplateStore, host: str, image: str, lines: str = "", **limits: Any) -> PullFailure:
    events = pull(store, host, image, lines, **limits)
    assert isinstance(events[-1], PullFailure), events
    assert store.list_templates() == ()
    return events[-1]


def trees(store: TemplateStore, template: Template) -> list[Path]:
    return [store.layers_dir / layer / LAYER_TREE for layer in template.layers]


class TestContent:
    @pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
    def test_image_is_unpacked_with_variables_and_whiteouts(
        self, registry: Registry, store: TemplateStore, compression: str
    ) -> None:
        registry.push(f"c/{compression}:1", [BASE, TOP], compression=compression, config={"Env": ["A=b"]})
        template = pulled(store, registry.host, f"c/{compression}:1")
        base, top = trees(store, template)
        assert (base / "etc/base").read_text() == "base\n"
        assert stat.S_ISCHR((top / "gone").lstat().st_mode)
        assert template.env == {"A": "b"}
        assert list((store.directory / DOWNLOADS).glob("sha256-*[0-9a-f]")) == []

    def test_progress_counts_compressed_bytes(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("progress:1", [BASE, TOP], compression="none")
        events = pull(store, registry.host, "progress:1")
        resolved = next(each for each in events if isinstance(each, ImageResolved))
        assert resolved.bytes == resolved.missing_bytes == len(BASE) + len(TOP)
        assert resolved.layers == {f"sha256:{hashlib.sha256(x).hexdigest()}": len(x) for x in (BASE, TOP)}
        assert any(isinstance(each, PullProgress) for each in events)

    def test_layers_are_shared_between_images(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("shared/a:1", [BASE, TOP])
        registry.push("shared/b:1", [BASE])
        with a_proxy(registry) as proxy:
            first = pulled(store, proxy.host, "shared/a:1")
            blobs = proxy.count("/blobs/")
            second = pulled(store, proxy.host, "shared/b:1")
            assert proxy.count("/blobs/") == blobs + 1  # the configuration
        assert second.layers == first.layers[:1]

    def test_image_by_digest(self, registry: Registry, store: TemplateStore) -> None:
        digest = registry.push("digest:1", [BASE])
        assert pulled(store, registry.host, f"digest@{digest}").layers

    def test_index_selects_the_platform_of_the_machine(self, registry: Registry, store: TemplateStore) -> None:
        own = registry.push("multi:own", [BASE])
        other = registry.push("multi:other", [TOP], platform={"architecture": "s390x"})
        platform = {"os": "linux", "architecture": image_architecture()}
        unknown = {"os": "unknown", "architecture": "unknown"}
        registry.push_index(
            "multi:1", [(other, unknown), (other, {"os": "linux", "architecture": "s390x"}), (own, platform)]
        )
        assert (trees(store, pulled(store, registry.host, "multi:1"))[0] / "etc/base").exists()

    def test_tag_that_moved_replaces_the_image(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("moving:1", [BASE])
        before = pulled(store, registry.host, "moving:1")
        registry.push("moving:1", [TOP])
        after = pulled(store, registry.host, "moving:1")
        assert before.digest != after.digest
        assert len(store.list_templates()) == 1


class TestRefusedImages:
    def test_unknown_tag_and_repository_are_not_found(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("known:1", [BASE])
        for image in ("known:2", "unknown:1"):
            failed = failure(store, registry.host, image)
            assert failed.reason is ImageFailure.NOT_FOUND
            assert "404" in failed.message

    def test_other_architecture_is_refused_with_the_reason(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("other:1", [BASE], platform={"architecture": "s390x"})
        failed = failure(store, registry.host, "other:1")
        assert failed.reason is ImageFailure.INVALID
        assert "linux/s390x" in failed.message
        digest = registry.push("other:2", [BASE], platform={"architecture": "s390x"})
        registry.push_index("other:all", [(digest, {"os": "linux", "architecture": "s390x"})])
        assert "only for linux/s390x" in failure(store, registry.host, "other:all").message

    def test_layer_with_a_wrong_digest_is_refused(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("wrong:1", [TOP], compression="none")
        with a_proxy(
            registry,
            lambda path, headers, answer: (
                (*answer[:2], answer[2][:-1] + b"x") if len(answer[2]) == len(TOP) else answer
            ),
        ) as proxy:
            failed = failure(store, proxy.host, "wrong:1")
        assert failed.reason is ImageFailure.INVALID
        assert "damaged" in failed.message
        assert list(store.layers_dir.iterdir()) == []

    def test_manifest_with_a_wrong_digest_is_refused(self, registry: Registry, store: TemplateStore) -> None:
        digest = registry.push("manifest:1", [BASE])
        with a_proxy(
            registry,
            lambda path, headers, answer: (*answer[:2], answer[2] + b" ") if "/manifests/" in path else answer,
        ) as proxy:
            assert failure(store, proxy.host, f"manifest@{digest}").reason is ImageFailure.INVALID

    def test_blob_that_is_longer_than_its_manifest_says_is_refused(
        self, registry: Registry, store: TemplateStore
    ) -> None:
        registry.push("long:1", [TOP], compression="none")
        with a_proxy(
            registry,
            lambda path, headers, answer: (*answer[:2], answer[2] * 2) if len(answer[2]) == len(TOP) else answer,
        ) as proxy:
            assert "more than" in failure(store, proxy.host, "long:1").message

    def test_zip_bomb_is_refused(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("bomb:1", [a_layer(member("zeros", bytes(64 << 20)))])
        failed = failure(store, registry.host, "bomb:1", max_mib=16)
        assert failed.reason is ImageFailure.INVALID
        assert "more than 16 MiB; allow more with TANGRAM_IMAGE_MAX_MIB" in failed.message
        assert list(store.layers_dir.iterdir()) == []

    def test_image_with_too_many_files_is_refused(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("files:1", [a_layer(*(member(f"f{number}") for number in range(200)))])
        assert "TANGRAM_IMAGE_MAX_FILES" in failure(store, registry.host, "files:1", max_members=100).message

    def test_members_cannot_leave_the_layer(self, registry: Registry, store: TemplateStore, tmp_path: Path) -> None:
        registry.push("up:1", [a_layer(member("../../escaped", "x"))])
        assert "leads out of the archive" in failure(store, registry.host, "up:1").message
        registry.push("links:1", [a_layer(a_symlink("out", str(tmp_path)), member("out/escaped", "x"))])
        assert "blocked by another entry" in failure(store, registry.host, "links:1").message
        assert not (tmp_path / "escaped").exists()

    def test_devices_are_dropped_and_set_uid_bits_only_without_users(
        self, registry: Registry, store: TemplateStore
    ) -> None:
        device = member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        registry.push("devices:1", [a_layer(device, member("su", "x", mode=0o4755))])
        (tree,) = trees(store, pulled(store, registry.host, "devices:1"))
        assert [path.name for path in tree.iterdir()] == ["su"]
        assert stat.S_IMODE((tree / "su").stat().st_mode) == (0o4755 if keeps_owners() else 0o755)

    def test_registry_that_the_operator_did_not_name_is_refused(
        self, registry: Registry, store: TemplateStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "registries.toml"
        path.write_text('others = "deny"\n')
        run = PullRun(store, f"{registry.host}/known:1", path)
        failed = run.go()
        assert isinstance(failed, PullFailure)
        assert failed.reason is ImageFailure.UNAUTHORIZED

    def test_plain_http_is_only_used_if_the_operator_allows_it(
        self, registry: Registry, store: TemplateStore, tmp_path: Path
    ) -> None:
        path = tmp_path / "registries.toml"
        path.write_text("")
        failed = PullRun(store, f"{registry.host}/known:1", path).go()
        assert isinstance(failed, PullFailure)
        assert failed.reason is ImageFailure.REGISTRY_UNAVAILABLE


class TestAuthentication:
    def test_basic_authentication(self, tmp_path: Path, store: TemplateStore) -> None:
        users = tmp_path / "users"
        users.write_text(f"{HTPASSWD}\n")
        options = {"auth": {"htpasswd": {"realm": "test", "path": str(users)}}}
        with a_registry(tmp_path / "registry", **options) as registry:
            registry.push("private:1", [BASE], auth=("user", "secret"))
            assert failure(store, registry.host, "private:1").reason is ImageFailure.UNAUTHORIZED
            wrong = failure(store, registry.host, "private:1", 'username = "user"\npassword = "hidden-word"')
            assert wrong.reason is ImageFailure.UNAUTHORIZED
            assert "hidden-word" not in wrong.message
            (tmp_path / "password").write_text("secret\n")
            given = f'username = "user"\npassword_file = "{tmp_path / "password"}"'
            assert pulled(store, registry.host, "private:1", given).layers

    def test_bearer_authentication_with_a_token_server(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("bearer:1", [BASE])

        def answers(path: str, headers: Mapping[str, str], answer: Any) -> Any:
            if path.startswith("/token"):
                return (
                    (200, {}, b'{"token": "granted"}')
                    if "basic" in headers["authorization"].lower()
                    else (401, {}, b"")
                )
            if headers.get("authorization") == "Bearer granted":
                return answer
            realm = f'Bearer realm="http://{proxy.host}/token",service="here",scope="repository:bearer:pull"'
            return 401, {"www-authenticate": realm}, b"{}"

        with a_proxy(registry, answers) as proxy:
            assert pulled(store, proxy.host, "bearer:1", 'username = "user"\npassword = "secret"').layers
            (asked,) = [path for path, _ in proxy.requests if path.startswith("/token")]
            assert asked == "/token?service=here&scope=repository%3Abearer%3Apull"

    def test_credentials_are_not_sent_to_another_host_after_a_redirect(
        self, registry: Registry, store: TemplateStore
    ) -> None:
        registry.push("redirect:1", [BASE])
        with a_proxy(registry) as elsewhere:

            def answers(path: str, headers: Mapping[str, str], answer: Any) -> Any:
                if headers.get("authorization") != "Bearer fixed":
                    return 401, {"www-authenticate": "Bearer"}, b""
                return (307, {"location": f"http://{elsewhere.host}{path}"}, b"") if "/blobs/" in path else answer

            with a_proxy(registry, answers) as proxy:
                assert pulled(store, proxy.host, "redirect:1", 'token = "fixed"').layers
            assert elsewhere.count("/blobs/") == 2
            assert not any("authorization" in headers for _, headers in elsewhere.requests)

    def test_invalid_file_of_registries_is_told_without_its_secrets(self, store: TemplateStore, tmp_path: Path) -> None:
        failed = failure(store, "127.0.0.1:1", "a:1", 'password = "hidden-word"')
        assert "username and password" in failed.message
        assert "hidden-word" not in failed.message


class TestUnavailableRegistries:
    def test_download_continues_after_the_connection_ended(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("resumed:1", [TOP], compression="none")
        with a_proxy(
            registry,
            lambda path, headers, answer: None if len(answer[2]) == len(TOP) else answer,
        ) as proxy:
            assert pulled(store, proxy.host, "resumed:1", give_up_s=30).layers
            ranges = [headers.get("range") for path, headers in proxy.requests if "/blobs/" in path]
        assert ranges[-1] == f"bytes={len(TOP) // 2}-"

    def test_pull_waits_for_a_registry_that_was_killed(self, tmp_path: Path, store: TemplateStore) -> None:
        with a_registry(tmp_path / "registry") as registry:
            registry.push("killed:1", [TOP])
            registries = settings_file(tmp_path, {registry.host: ""})
            run = PullRun(store, f"{registry.host}/killed:1", registries, give_up_s=60)
            assert isinstance(run.read_until(ImageResolved), ImageResolved)
            registry.stop()
            run._send("go")
            waiting = run.read_until(PullProgress)
            while not (isinstance(waiting, PullProgress) and waiting.waiting):
                waiting = run.read_until(PullProgress)
            assert "does not respond: ConnectError" in waiting.waiting
            registry.start()
            assert isinstance(run.read_until(ImagePulled), ImagePulled)
            run.kill()

    def test_registry_that_stays_away_is_unavailable(self, store: TemplateStore) -> None:
        failed = failure(store, "127.0.0.1:1", "a:1")
        assert failed.reason is ImageFailure.REGISTRY_UNAVAILABLE

    def test_mirror_serves_the_image_and_the_registry_is_the_fallback(
        self, registry: Registry, store: TemplateStore
    ) -> None:
        registry.push("mirrored:1", [BASE])
        with a_proxy(registry) as mirror:
            assert pulled(store, "127.0.0.1:1", "mirrored:1", f'mirrors = ["http://{mirror.host}"]').layers
            assert mirror.count("/blobs/") == 2
        dead = 'mirrors = ["http://127.0.0.1:1"]'
        assert pulled(store, registry.host, "mirrored:1", dead).layers

    def test_killed_pull_continues_its_download(self, registry: Registry, store: TemplateStore) -> None:
        registry.push("again:1", [TOP], compression="none")
        first = [True]

        def half_once(path: str, headers: Mapping[str, str], answer: Any) -> Any:
            if len(answer[2]) != len(TOP) or not first:
                return answer
            first.clear()
            return None

        with a_proxy(registry, half_once) as proxy:
            registries = settings_file(store.directory.parent, {proxy.host: ""})
            killed = PullRun(store, f"{proxy.host}/again:1", registries, give_up_s=60)
            killed.read_until(ImageResolved)
            killed._send("go")
            while not (isinstance(last := killed.read_until(PullProgress), PullProgress) and last.waiting):
                pass
            killed.kill()
            assert pulled(store, proxy.host, "again:1").layers
            assert any("range" in headers for _, headers in proxy.requests)


def image_architecture() -> str:
    return ARCHITECTURES[platform.machine()]
