"""Sources of images: a root directory, an OCI layout or an archive of `docker save`."""

import io
import json
import os
import platform
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from arl_cpu.launcher.files.tar_headers import BoundedTarInfo, OversizedTarHeader
from arl_cpu.templates.byte_streams import DigestingReader
from arl_cpu.templates.oci_image import (
    ARCHITECTURES,
    OciImage,
    blob_path,
    docker_image_paths,
    is_index,
    parse_docker_image,
    parse_oci_image,
    select_image,
)
from arl_cpu.templates.template import TemplateError
from arl_cpu.templates.template_store import keeps_owners

__all__ = ["ImageBlobs", "identify_source", "open_source", "pack_directory", "read_image"]

_MAX_JSON_BYTES = 4 << 20
_MAX_OUTER_MEMBERS = 100_000
_MAX_INDEXES = 4
_OCI, _DOCKER = "index.json", "manifest.json"


class ImageBlobs(Protocol):
    """The files of an image by their path."""

    def has(self, path: str) -> bool:
        """Return True if the file exists."""

    def open(self, path: str) -> BinaryIO:
        """Open a file. Raises TemplateError if it is missing."""
        ...


def identify_source(path: Path) -> str:
    """Return `directory`, `oci` or `archive`. Raises TemplateError if the path is none of these."""
    if path.is_dir():
        layout = (path / "oci-layout").is_file() and (path / _OCI).is_file()
        return "oci" if layout else "directory"
    if path.is_file():
        return "archive"
    raise TemplateError(f"{path} is neither a directory nor a file")


@contextmanager
def open_source(path: Path) -> Iterator[ImageBlobs]:
    """Open an OCI layout, or an archive of one or of `docker save`."""
    if path.is_dir():
        yield _DirectoryBlobs(path)
        return
    try:
        archive = tarfile.open(path, tarinfo=BoundedTarInfo.for_one_archive())  # noqa: SIM115 # closed below
    except (tarfile.TarError, OversizedTarHeader) as error:
        raise TemplateError(f"{path} is not a tar archive: {error}") from None
    with archive:
        yield _ArchiveBlobs(archive)


def read_image(blobs: ImageBlobs) -> tuple[OciImage, str]:
    """Return the only image for this machine and the digest of its configuration, which covers all of the image."""
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    if blobs.has(_OCI):
        return _oci_image(blobs, architecture)
    if not blobs.has(_DOCKER):
        raise TemplateError(
            "the source is neither an OCI image layout nor an archive of `docker save`: it has no index.json and no"
            " manifest.json"
        )
    config_path, layers = docker_image_paths(_require_list(_read_json(blobs, _DOCKER)[0]))
    config, digest = _read_json(blobs, config_path)
    return parse_docker_image(layers, _require_mapping(config), architecture), digest


def pack_directory(directory: Path, target: BinaryIO) -> None:
    """Pack a directory as the archive of one layer, deterministically. Devices, pipes and sockets are omitted."""
    if directory.resolve() == Path("/"):
        raise TemplateError(
            "the root directory of this machine cannot be a template; use `host`, which shows its system directories"
        )
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for parent, directories, files in os.walk(directory):
            directories.sort()
            for name in sorted([*directories, *files]):
                path = os.path.join(parent, name)
                member = archive.gettarinfo(path, os.path.relpath(path, directory))
                if member is None or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    continue
                if not keeps_owners():
                    member.uid = member.gid = 0
                member.uname = member.gname = ""
                if member.isfile():
                    with open(path, "rb") as file:
                        archive.addfile(member, file)
                else:
                    archive.addfile(member)


def _oci_image(blobs: ImageBlobs, architecture: str) -> tuple[OciImage, str]:
    found = _require_mapping(_read_json(blobs, _OCI)[0])
    for _ in range(_MAX_INDEXES):
        if not is_index(found):
            digest = str((found.get("config") or {}).get("digest"))
            config = _require_mapping(_read_verified(blobs, digest))
            return parse_oci_image(found, config, architecture), digest
        found = _require_mapping(_read_verified(blobs, select_image(found, architecture)))
    raise TemplateError("the indexes of the image are nested too deeply")


def _read_verified(blobs: ImageBlobs, digest: str) -> Any:
    content, found = _read_json(blobs, blob_path(digest))
    if found != digest:
        raise TemplateError(f"{blob_path(digest)} is damaged: its digest is {found}")
    return content


def _read_json(blobs: ImageBlobs, path: str) -> tuple[Any, str]:
    with blobs.open(path) as file:
        digesting = DigestingReader(file)
        content = io.BufferedReader(digesting).read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise TemplateError(f"{path} has more than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        return json.loads(content), digesting.digest
    except (ValueError, RecursionError) as error:
        raise TemplateError(f"{path} is not JSON: {error}") from None


def _require_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TemplateError("a manifest or configuration of the image is not a JSON object")
    return value


def _require_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TemplateError("the manifest.json of the image is not a list")
    return value


class _DirectoryBlobs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, path: str) -> bool:
        return (self._directory / path).is_file()

    def open(self, path: str) -> BinaryIO:
        try:
            file = os.open(self._directory / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TemplateError(f"{path} of the image cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise TemplateError(f"{path} of the image is not a file")
        return os.fdopen(file, "rb")


class _ArchiveBlobs:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            self._members[member.name.removeprefix("./")] = member
            if len(self._members) > _MAX_OUTER_MEMBERS:
                raise TemplateError("the archive has too many files for an image")

    def has(self, path: str) -> bool:
        return path in self._members

    def open(self, path: str) -> BinaryIO:
        """Open a member and follow links within the archive: older versions of `docker save` write a layer once."""
        try:
            file = self._archive.extractfile(self._members[path])
        except (KeyError, RecursionError):
            file = None
        if file is None:
            raise TemplateError(f"the archive does not contain {path}")
        return file  # type: ignore[return-value]
