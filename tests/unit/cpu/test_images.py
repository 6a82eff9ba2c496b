"""Parsing of image manifests and of member names in layers."""

import platform
from typing import Any

import pytest

from arl_cpu.templates.layer_entries import LayerEntry, parse_member_name
from arl_cpu.templates.oci_image import (
    ARCHITECTURES,
    docker_image_paths,
    parse_docker_image,
    parse_oci_image,
    select_image,
)
from arl_cpu.templates.template import TemplateError, check_name

HERE = ARCHITECTURES.get(platform.machine(), platform.machine())
ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")


def a_config(*diff_ids: str, **changed: Any) -> dict[str, Any]:
    return {"os": "linux", "architecture": HERE, "rootfs": {"diff_ids": list(diff_ids)}, **changed}


def an_entry(digest: str, architecture: str = HERE, ref: str = "") -> dict[str, Any]:
    platform = {"os": "linux", "architecture": architecture}
    return {"digest": digest, "platform": platform, "annotations": {"org.opencontainers.image.ref.name": ref}}


class TestParseMemberName:
    @pytest.mark.parametrize(
        ("name", "place"),
        [
            ("./a/b", LayerEntry("a", "b")),
            ("/etc/passwd", LayerEntry("etc", "passwd")),
            ("a//b/", LayerEntry("a", "b")),
            (".wh.gone", LayerEntry("", "gone", "whiteout")),
            ("a/.wh.gone", LayerEntry("a", "gone", "whiteout")),
            ("a/.wh..wh..opq", LayerEntry("a", ".wh..wh..opq", "opaque")),
            ("a/.wh..wh.plnk", None),
            ("./", None),
        ],
    )
    def test_member_name_is_path_below_root_or_whiteout(self, name: str, place: LayerEntry | None) -> None:
        assert parse_member_name(name) == place

    @pytest.mark.parametrize("name", ["../a", "a/../../b", "a/..", ".wh...", ".wh..", ".wh.", "a/.wh.b/c", "a\0b"])
    def test_escaping_or_invalid_member_name_is_refused(self, name: str) -> None:
        with pytest.raises(TemplateError):
            parse_member_name(name)


class TestParseImage:
    def test_layers_are_in_order_with_environment_and_working_directory(self) -> None:
        wanted = {"Env": ["A=1", "B=x=y", "no variable", "1=2"], "WorkingDir": "/srv/../app/"}
        config = a_config(ONE, TWO, config=wanted)
        image = parse_oci_image({"layers": [{"digest": TWO}, {"digest": ONE}]}, config, HERE)
        assert [(layer.diff_id, layer.digest) for layer in image.layers] == [(ONE, TWO), (TWO, ONE)]
        assert (image.env, image.workdir) == ({"A": "1", "B": "x=y"}, "/app")

    @pytest.mark.parametrize(
        ("variables", "said"),
        [([f"PATH={'/a:' * 70_000}"], "'PATH'"), ([f"V{n}={'x' * 100_000}" for n in range(6)], "total")],
    )
    def test_variables_with_which_no_program_starts_are_refused(self, variables: list[str], said: str) -> None:
        with pytest.raises(TemplateError, match="bytes") as refused:
            parse_docker_image(["l"], a_config(ONE, config={"Env": variables}), HERE)
        assert said in str(refused.value) or "the variables of the image" in str(refused.value)

    @pytest.mark.parametrize("workdir", ["", "/", "//", "relative", "/a\0b", None, 7])
    def test_invalid_working_directory_is_ignored(self, workdir: object) -> None:
        assert parse_docker_image(["l"], a_config(ONE, config={"WorkingDir": workdir}), HERE).workdir is None

    def test_image_for_this_architecture_is_selected(self) -> None:
        assert select_image({"manifests": [an_entry(ONE, "s390x"), an_entry(TWO)]}, HERE) == TWO

    def test_ambiguous_image_is_refused_with_available_names(self) -> None:
        with pytest.raises(TemplateError, match="a:1, b:2"):
            select_image({"manifests": [an_entry(ONE, ref="a:1"), an_entry(TWO, ref="b:2")]}, HERE)
        with pytest.raises(TemplateError, match="a:1, b:2"):
            docker_image_paths([{"RepoTags": ["a:1"]}, {"RepoTags": ["b:2"]}])

    @pytest.mark.parametrize(
        ("layers", "config"),
        [
            (1, a_config(ONE, architecture="s390x")),
            (1, a_config(ONE, os="windows")),
            (1, a_config("md5:1")),
            (1, a_config()),
            (2, a_config(ONE)),
            (1, {"rootfs": {"diff_ids": "x"}}),
            (1, {"rootfs": 7}),
            (1, {}),
            (0, a_config()),
        ],
    )
    def test_image_unusable_on_this_machine_is_refused(self, layers: int, config: dict[str, Any]) -> None:
        with pytest.raises(TemplateError):
            parse_docker_image(["layer"] * layers, config, HERE)

    @pytest.mark.parametrize("digest", ["sha256:" + "g" * 64, "sha256:../../etc/passwd", "", None])
    def test_invalid_layer_digest_is_refused(self, digest: str | None) -> None:
        with pytest.raises(TemplateError):
            parse_oci_image({"layers": [{"digest": digest}]}, a_config(ONE), HERE)


@pytest.mark.parametrize("name", ["host", "", "a/b", "..", ".a", "a b", "a" * 65])
def test_invalid_template_name_is_refused(name: str) -> None:
    with pytest.raises(TemplateError):
        check_name(name)
