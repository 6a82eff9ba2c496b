"""Test the names of container images."""

import re

import pytest

from arl_core.images.references import (
    IMAGE_OR_TEMPLATE_PATTERN,
    InvalidReference,
    canonical_template,
    is_image_name,
    parse_reference,
)

DIGEST = f"sha256:{'a1' * 32}"


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("python:3.12", "docker.io/library/python:3.12"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/python:3", "docker.io/library/python:3"),
        (
            "swebench/sweb.eval.x86_64.django__django-1:latest",
            "docker.io/swebench/sweb.eval.x86_64.django__django-1:latest",
        ),
        (f"python@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"GHCR.io/owner/image:v1@{DIGEST}", f"ghcr.io/owner/image@{DIGEST}"),
        ("localhost/image", "localhost/image:latest"),
        ("localhost:5000/a/b/c", "localhost:5000/a/b/c:latest"),
        ("registry:5000/image:x", "registry:5000/image:x"),
    ],
)
def test_image_reference_is_completed_with_the_defaults_of_docker(name: str, canonical: str) -> None:
    assert is_image_name(name)
    assert canonical_template(name) == canonical
    assert canonical_template(canonical) == canonical
    assert re.fullmatch(IMAGE_OR_TEMPLATE_PATTERN, name)


@pytest.mark.parametrize("name", ["host", "py3.12", "A_b-c", "a" * 64])
def test_plain_name_stays_a_template(name: str) -> None:
    assert canonical_template(name) == name
    assert not is_image_name(name)
    assert re.fullmatch(IMAGE_OR_TEMPLATE_PATTERN, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "template name must be"),
        ("-x", "template name must be"),
        ("a" * 65, "template name must be"),
        ("owner/image", "must have a registry host, a tag or a digest"),
        ("Owner/image:1", "lower-case"),
        ("docker.io/", "image repository ''"),
        ("docker.io//a", "image repository '/a'"),
        ("a/../b:1", "image repository 'a/../b'"),
        ("python:", "image tag"),
        ("python:.x", "image tag"),
        ("python:3:4", "image tag"),
        ("python:3 4", "image tag"),
        ("python@sha256:abc", "image digest"),
        ("python@sha512:" + "a" * 128, "image digest"),
        ("bad_host.io/x:1", "image registry 'bad_host.io'"),
        ("ho st.io/x:1", "image registry"),
        ("http://registry.io/x:1", "image"),
        ("registry.io:port/x", "image registry"),
        ("docker.io/" + "a" * 250, "at most 255"),
        ("a" * 600 + ":1", "at most 512"),
        ("python:3\n", "image tag"),
    ],
)
def test_invalid_reference_is_refused_with_a_reason(name: str, message: str) -> None:
    with pytest.raises(InvalidReference, match=re.escape(message)):
        canonical_template(name)


def test_digest_takes_precedence_over_the_tag() -> None:
    reference = parse_reference(f"docker.io/library/python:3.12@{DIGEST}")
    assert (reference.version, reference.tag) == (DIGEST, None)
