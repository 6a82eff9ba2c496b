"""Names of container images, in the grammar of the OCI distribution specification."""

import re
from dataclasses import dataclass

__all__ = [
    "DEFAULT_REGISTRY",
    "IMAGE_OR_TEMPLATE_PATTERN",
    "IMAGE_REFERENCE_PATTERN",
    "MAX_REFERENCE_LENGTH",
    "ImageReference",
    "InvalidReference",
    "canonical_image",
    "canonical_template",
    "is_image_name",
    "parse_reference",
]

DEFAULT_REGISTRY = "docker.io"
"""Registry of references without a host, as in Docker."""
MAX_REFERENCE_LENGTH = 512
"""Maximum characters of a reference. The distribution specification allows 255 for host and repository."""
_MAX_NAME_LENGTH = 255
_DEFAULT_NAMESPACE, _DEFAULT_TAG = "library", "latest"
_REGISTRY_ALIASES = {"index.docker.io": DEFAULT_REGISTRY, "registry-1.docker.io": DEFAULT_REGISTRY}

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+)(?::[0-9]{{1,5}})?|{_LABEL}:[0-9]{{1,5}}"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = rf"{_COMPONENT}(?:/{_COMPONENT})*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"

_REFERENCE = rf"(?:{_HOST})/{_PATH}(?::{_TAG})?(?:@{_DIGEST})?|{_PATH}(?::{_TAG}(?:@{_DIGEST})?|@{_DIGEST})"

IMAGE_REFERENCE_PATTERN = rf"^(?:{_REFERENCE})$"
"""Pattern of the names that `canonical_image` accepts, for schemas."""
IMAGE_OR_TEMPLATE_PATTERN = rf"^(?:{_PLAIN}|{_REFERENCE})$"
"""Pattern of the names that `canonical_template` accepts, for schemas."""

_PLAIN_NAME = re.compile(_PLAIN)
_HOST_NAME = re.compile(_HOST)
_PATH_NAME = re.compile(_PATH)
_TAG_NAME = re.compile(_TAG)
_DIGEST_NAME = re.compile(_DIGEST)


class InvalidReference(ValueError):
    """A name that is neither a template nor a reference of an image. The message says what to change."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image of a registry: a tag or a digest of a repository."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    """Digest of the manifest or index. It takes precedence over the tag."""

    def __str__(self) -> str:
        name = f"{self.registry}/{self.repository}"
        return f"{name}@{self.digest}" if self.digest is not None else f"{name}:{self.tag}"

    @property
    def version(self) -> str:
        """Return the digest or the tag, as manifests are named in the distribution API."""
        return self.digest or self.tag or _DEFAULT_TAG


def is_image_name(name: str) -> bool:
    """Return True for the name of an image: it has a registry host, a tag or a digest. Others name templates."""
    return "/" in name or ":" in name or "@" in name


def canonical_image(name: str) -> str:
    """Return the full form of a reference. Raises InvalidReference."""
    return str(parse_reference(name))


def canonical_template(name: str) -> str:
    """Return the name of a template unchanged, and a reference of an image in its full form.

    Raises InvalidReference.
    """
    if is_image_name(name):
        return str(parse_reference(name))
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidReference(
            "template name must be up to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit, or the"
            " reference of an image such as `docker.io/library/python:3.12`"
        )
    return name


def parse_reference(name: str) -> ImageReference:
    """Parse a reference such as `python:3.12` or `ghcr.io/owner/image@sha256:…`. Raises InvalidReference."""
    if len(name) > MAX_REFERENCE_LENGTH:
        raise InvalidReference(f"image reference must have at most {MAX_REFERENCE_LENGTH} characters")
    rest, at, digest = name.partition("@")
    if at and not _DIGEST_NAME.fullmatch(digest):
        raise InvalidReference("image digest after `@` must be `sha256:` and 64 hexadecimal digits in lower case")
    host, rest = _split_host(rest)
    path, colon, tag = rest.partition(":")
    if colon and not _TAG_NAME.fullmatch(tag):
        raise InvalidReference(
            "image tag after `:` must be up to 128 letters, digits, `_`, `.` and `-`, not starting with `.` or `-`"
        )
    if not _PATH_NAME.fullmatch(path):
        raise InvalidReference(
            f"image repository {path!r} must consist of lower-case letters, digits and single separators `.`, `_`,"
            " `-` and `/`"
        )
    if host is None and not colon and not at:
        raise InvalidReference(
            f"image reference {name!r} must have a registry host, a tag or a digest; write"
            f" `{DEFAULT_REGISTRY}/{path}:{_DEFAULT_TAG}` for the image of Docker Hub"
        )
    registry = _REGISTRY_ALIASES.get(host, host) if host is not None else DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"{_DEFAULT_NAMESPACE}/{path}"
    if len(registry) + 1 + len(path) > _MAX_NAME_LENGTH:
        raise InvalidReference(f"image registry and repository must have at most {_MAX_NAME_LENGTH} characters")
    return ImageReference(registry, path, None if at else tag or _DEFAULT_TAG, digest or None)


def _split_host(name: str) -> tuple[str | None, str]:
    """Split the registry from a name. The first component is a host if it has a dot or port, or is `localhost`."""
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return None, name
    if not _HOST_NAME.fullmatch(first):
        raise InvalidReference(f"image registry {first!r} must be a host name, with a port if needed")
    return first.lower(), rest
