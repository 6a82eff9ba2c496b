"""Small handmade images: layers as tar archives, OCI layouts and `docker save` archives."""

import gzip
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arl_cpu.templates.oci_image import ARCHITECTURES

__all__ = [
    "PROGRAMS",
    "a_docker_archive",
    "a_layer",
    "a_link",
    "a_root",
    "a_symlink",
    "an_oci_layout",
    "digest_of",
    "image_config",
    "member",
    "packed",
]

PROGRAMS = ("sh", "cat", "ls", "mkdir", "rm", "touch", "stat", "id", "chmod", "mv", "ln", "env", "pwd", "dd")
_LIBRARY = re.compile(r"(/\S+)(?= \(0x)")
_TIME = 1_700_000_000


def a_root(directory: Path, *, programs: Iterable[str] = PROGRAMS, files: Mapping[str, str] | None = None) -> Path:
    """Create a root directory with a few of this machine's programs and their libraries."""
    wanted = [found for name in programs if (found := shutil.which(name, path="/bin:/usr/bin")) is not None]
    for program in wanted:
        _copy(program, directory / "bin" / Path(program).name)
    linked = subprocess.run(["ldd", *wanted], capture_output=True, text=True, check=True).stdout
    for library in sorted(set(_LIBRARY.findall(linked))):
        _copy(library, directory / library.lstrip("/"))
    for path, content in {"etc/release": "made by hand\n", **(files or {})}.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    return directory


def member(name: str, content: bytes | str = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a layer's file; `changes` set other fields such as `type`, `linkname` and `mode`."""
    content = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), _TIME, 0o644
    if name.endswith("/"):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    for field, value in changes.items():
        setattr(info, field, value)
    return info, content


def a_symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def a_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def a_layer(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def packed(directory: Path) -> bytes:
    """Return a directory as one layer."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(directory, ".")
    return target.getvalue()


def an_oci_layout(
    directory: Path, layers: Sequence[bytes], *, compress: bool = True, config: Mapping[str, Any] | None = None
) -> Path:
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, Any]:
        (blobs / digest_of(content)).write_bytes(content)
        return {"digest": f"sha256:{digest_of(content)}", "size": len(content)}

    found = put(json.dumps(image_config(layers, config)).encode())
    stored = [put(gzip.compress(layer) if compress else layer) for layer in layers]
    manifest = put(json.dumps({"schemaVersion": 2, "config": found, "layers": stored}).encode())
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory


def a_docker_archive(path: Path, layers: Sequence[bytes], *, config: Mapping[str, Any] | None = None) -> Path:
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["made:by-hand"], "Layers": names}]
    files = {
        "config.json": json.dumps(image_config(layers, config)).encode(),
        "manifest.json": json.dumps(manifest).encode(),
        **dict(zip(names, layers, strict=True)),
    }
    path.write_bytes(a_layer(*(member(name, content) for name, content in files.items())))
    return path


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def image_config(layers: Sequence[bytes], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of an image for this machine's architecture."""
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    diff_ids = [f"sha256:{digest_of(layer)}" for layer in layers]
    return {
        "os": "linux",
        "architecture": architecture,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "config": dict(config or {}),
    }


def _copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)
