"""The process that pulls or removes images: one request in JSON on standard input, events on standard output.

`pull` waits for a second line before it downloads, so that the node can make room. `remove` has the arguments
DIRECTORY IMAGE…, and prints the removed images.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from arl_core.images.pull_planning import ImageFailure
from arl_core.images.references import parse_reference
from arl_cpu.images.pull_messages import (
    ImagePulled,
    ImageResolved,
    PullEvent,
    PullFailure,
    PullProgress,
    PullRequest,
    encode_event,
)
from arl_cpu.images.puller import ImagePuller
from arl_cpu.images.registries import InvalidRegistries, read_registries
from arl_cpu.images.registry_client import PullFailed, RegistryClient
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import remove_record
from arl_cpu.templates.layer_store import remove_unused_layers
from arl_cpu.templates.template_store import TemplateInUse, TemplateStore, UnknownTemplate

__all__ = ["main"]

_MAX_MEMORY_BYTES = 2 << 30
"""Memory limit of the process. The headers of an archive are read into memory at any size they claim."""
_REPORT_INTERVAL_S = 0.25


class _EventWriter:
    """Events on standard output; progress at most four times a second."""

    def __init__(self) -> None:
        self._bytes_done, self._reported_at = 0, float("-inf")

    def send(self, event: PullEvent) -> None:
        sys.stdout.write(encode_event(event))
        sys.stdout.flush()

    def progress(self, bytes_done: int) -> None:
        self._bytes_done = bytes_done
        if (now := time.monotonic()) - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            self.send(PullProgress(bytes_done=bytes_done))

    def wait(self, message: str) -> None:
        self.send(PullProgress(bytes_done=self._bytes_done, waiting=message))


def main(arguments: list[str]) -> int:
    """Execute a command and return the exit code."""
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    if arguments[0] == "remove":
        sys.stdout.write(json.dumps(_remove(TemplateStore(Path(arguments[1])), arguments[2:])) + "\n")
        return 0
    writer = _EventWriter()
    try:
        _pull(PullRequest(**json.loads(sys.stdin.readline())), writer)
    except PullFailed as failed:
        writer.send(PullFailure(reason=failed.reason, message=str(failed)))
    except InvalidRegistries as invalid:
        writer.send(PullFailure(reason=ImageFailure.REGISTRY_UNAVAILABLE, message=str(invalid)))
    return 0


def _pull(request: PullRequest, writer: _EventWriter) -> None:
    name = parse_reference(request.image)
    store = TemplateStore(Path(request.store))
    store.create_directories()
    endpoints = read_registries(Path(request.registries) if request.registries else None).endpoints(name)
    client = RegistryClient(name, endpoints, give_up_s=request.give_up_s, on_wait=writer.wait)
    puller = ImagePuller(store, name, client, writer.progress)
    resolved = puller.resolve()
    writer.send(
        ImageResolved(
            digest=resolved.digest,
            bytes=sum(resolved.sizes.values()),
            missing_bytes=puller.missing_bytes(resolved),
            layers=resolved.sizes,
        )
    )
    if not sys.stdin.readline():
        return
    budget = ImportBudget(
        max_bytes=request.max_mib << 20,
        max_members=request.max_members,
        bytes_option="TANGRAM_IMAGE_MAX_MIB",
        members_option="TANGRAM_IMAGE_MAX_FILES",
    )
    template = puller.pull(resolved, budget=budget, parallel=request.parallel)
    writer.send(ImagePulled(bytes=template.bytes))


def _remove(store: TemplateStore, names: list[str]) -> list[str]:
    """Remove images that no environment uses. Return their names."""
    removed = []
    with store.exclusive_lock():
        for name in names:
            try:
                remove_record(store, name)
            except (TemplateInUse, UnknownTemplate, FileNotFoundError):
                continue
            removed.append(name)
        remove_unused_layers(store)
    return removed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
