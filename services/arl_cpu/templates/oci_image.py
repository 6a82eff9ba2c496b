"""Parsers of image manifests and configurations: layers in order, environment variables and working directory."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_cpu.templates.template import TemplateError

__all__ = [
    "ARCHITECTURES",
    "ImageLayer",
    "OciImage",
    "blob_path",
    "docker_image_paths",
    "is_index",
    "parse_docker_image",
    "parse_oci_image",
    "select_image",
]

ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architecture names of images by the kernel's names."""
MAX_VARIABLE_BYTES = 128 << 10
"""Maximum bytes of a variable with its name and its end (execve(2))."""
MAX_VARIABLES_BYTES = 512 << 10
"""Maximum bytes of all variables of an image; the rest of what Linux accepts is for the action's."""
MAX_LAYERS = 200
_REF_NAME_ANNOTATION = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.$-]{0,63})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """A layer of an image."""

    blob: str
    """Path of its archive in the image."""
    diff_id: str
    """sha256 of the uncompressed archive."""
    digest: str | None = None
    """sha256 of the archive as stored, if the image records it."""


@dataclass(frozen=True, slots=True)
class OciImage:
    """The parts of an image that a template needs."""

    layers: tuple[ImageLayer, ...]
    """Layers, lowest first."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    """User of its programs as `USER` or `USER:GROUP`. None: root."""


def is_index(manifest: Mapping[str, Any]) -> bool:
    """Return True if the manifest is an index of several manifests."""
    return "manifests" in manifest


def select_image(index: Mapping[str, Any], architecture: str, *, first: bool = False) -> str:
    """Return the digest of the only image or nested index for this machine. Raises TemplateError otherwise.

    `first` takes the first of several: a registry lists variants of one image, a file may contain several images.
    """
    found = [entry for entry in _dicts(index, "manifests") if _matches_platform(entry, architecture)]
    digests = dict.fromkeys(_digest(entry) for entry in found)
    if not digests:
        there = sorted(filter(None, map(_platform_name, _dicts(index, "manifests"))))
        raise TemplateError(
            f"the image has no variant for linux/{architecture}, only for {', '.join(there) or 'unknown platforms'}"
        )
    if len(digests) > 1 and not first:
        named = ", ".join(
            str(_dict(entry, "annotations").get(_REF_NAME_ANNOTATION, entry["digest"])) for entry in found
        )
        raise TemplateError(f"the source contains several images: {named}. Save the wanted one alone")
    return next(iter(digests))


def parse_oci_image(manifest: Mapping[str, Any], config: Mapping[str, Any], architecture: str) -> OciImage:
    """Return the image of an OCI manifest and configuration. Raises `TemplateError`."""
    layers = _dicts(manifest, "layers")
    diff_ids = _diff_ids(config, len(layers), architecture)
    digests = [_digest(layer) for layer in layers]
    return _build_image(
        [ImageLayer(blob_path(at), diff, at) for at, diff in zip(digests, diff_ids, strict=True)], config
    )


def docker_image_paths(entries: Sequence[Any]) -> tuple[str, list[str]]:
    """Return the paths of the configuration and the layers of the only image in a `manifest.json`."""
    if len(entries) != 1 or not isinstance(entries[0], dict):
        named = [tag for entry in entries if isinstance(entry, dict) for tag in entry.get("RepoTags") or ()]
        raise TemplateError(
            f"the source contains {len(entries)} images ({', '.join(map(str, named))}). Save the wanted one alone"
        )
    config, layers = entries[0].get("Config"), entries[0].get("Layers")
    if not isinstance(config, str) or not isinstance(layers, list) or not all(isinstance(at, str) for at in layers):
        raise TemplateError("manifest.json names no configuration or no layers")
    return config, layers


def parse_docker_image(layers: Sequence[str], config: Mapping[str, Any], architecture: str) -> OciImage:
    """Return the image of a `docker save` archive. Raises `TemplateError`."""
    diff_ids = _diff_ids(config, len(layers), architecture)
    return _build_image([ImageLayer(at, diff) for at, diff in zip(layers, diff_ids, strict=True)], config)


def blob_path(digest: str) -> str:
    """Return the path of a blob in an OCI layout. Raises `TemplateError` for an invalid digest."""
    if not _DIGEST.fullmatch(digest):
        raise TemplateError(f"{digest!r} is not a sha256 digest")
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _build_image(layers: Sequence[ImageLayer], config: Mapping[str, Any]) -> OciImage:
    wanted = _dict(config, "config")
    variables = [each for each in wanted.get("Env") or () if isinstance(each, str) and _VARIABLE.fullmatch(each)]
    _check_sizes(variables)
    return OciImage(
        tuple(layers),
        dict(each.split("=", 1) for each in variables),
        _workdir(wanted.get("WorkingDir")),
        _user(wanted.get("User")),
    )


def _check_sizes(variables: Sequence[str]) -> None:
    """Raise `TemplateError` for variables with which Linux starts no program."""
    sizes = {each.split("=", 1)[0]: len(each.encode(errors="surrogateescape")) + 1 for each in variables}
    for name, size in sizes.items():
        if size > MAX_VARIABLE_BYTES:
            raise TemplateError(
                f"the variable {name!r} of the image has {size} bytes, but Linux starts no program with one above"
                f" {MAX_VARIABLE_BYTES}: shorten it in the image"
            )
    if (total := sum(sizes.values())) > MAX_VARIABLES_BYTES:
        raise TemplateError(
            f"the variables of the image have {total} bytes; at most {MAX_VARIABLES_BYTES} are allowed: remove some"
        )


def _workdir(value: object) -> str | None:
    """Return the working directory. Images without one use the root, for which the result is None."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        return None
    path = "/" + posixpath.normpath(value).lstrip("/")
    return path if path != "/" else None


def _user(value: object) -> str | None:
    """Return the user. Raises TemplateError: with another one than the image's author meant, programs fail later."""
    if value in (None, ""):
        return None
    if not isinstance(value, str) or not _USER.fullmatch(value):
        raise TemplateError(
            f"the user {str(value)[:80]!r} of the image is not a name or number: correct it in the image"
        )
    return value


def _diff_ids(config: Mapping[str, Any], count: int, architecture: str) -> list[str]:
    platform = (config.get("os", "linux"), config.get("architecture", architecture))
    if platform != ("linux", architecture):
        raise TemplateError(
            f"the image is for {'/'.join(map(str, platform))}, but this machine is linux/{architecture}"
        )
    diff_ids = _dict(config, "rootfs").get("diff_ids")
    if not isinstance(diff_ids, list) or not all(isinstance(at, str) and _DIGEST.fullmatch(at) for at in diff_ids):
        raise TemplateError("the configuration of the image lists no layers by sha256")
    if len(diff_ids) != count or not 0 < count <= MAX_LAYERS:
        raise TemplateError(
            f"the image has {count} layers and {len(diff_ids)} digests; the numbers must be equal, from 1 to"
            f" {MAX_LAYERS}"
        )
    return diff_ids


def _matches_platform(entry: Mapping[str, Any], architecture: str) -> bool:
    platform = _dict(entry, "platform")
    return not platform or (platform.get("os"), platform.get("architecture")) == ("linux", architecture)


def _platform_name(entry: Mapping[str, Any]) -> str | None:
    platform = _dict(entry, "platform")
    names = [str(platform.get(name)) for name in ("os", "architecture")]
    return "/".join(names) if "unknown" not in names else None


def _digest(entry: Mapping[str, Any]) -> str:
    blob_path(str(entry.get("digest")))
    return str(entry["digest"])


def _dicts(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TemplateError(f"the manifest of the image has no list of {name}")
    return found


def _dict(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}
