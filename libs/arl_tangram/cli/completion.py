"""Names that the shell completes, read from the running system."""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from arl_tangram.client import Tangram
from arl_tangram.transport.connection import resolve_connection, state_directory

__all__ = [
    "complete_endpoint",
    "complete_environment",
    "complete_node",
    "complete_pool",
    "complete_project",
    "complete_reward_service",
    "complete_task",
    "complete_template",
]

Completion = Callable[[typer.Context, str], list[str]]


def _completion(list_names: Callable[[Tangram], Iterable[str]]) -> Completion:
    """Return a completion function. It completes nothing if the system does not answer at once."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        directory = ctx.params.get("directory")
        try:
            connection = resolve_connection(directory=Path(directory) if directory else state_directory())
            with Tangram(connection.url, connection.api_key, retry_timeout_s=0) as tangram:
                return sorted({name for name in list_names(tangram) if name.startswith(incomplete)})
        except Exception:  # noqa: BLE001 - an error message would end up in the command line that is being typed
            return []

    return complete


complete_endpoint = _completion(lambda tangram: (each.name for each in tangram.endpoints()))
complete_environment = _completion(lambda tangram: (str(each.id) for each in tangram.environments(state="live")))
complete_node = _completion(lambda tangram: (each.name for each in tangram.nodes().items))
complete_pool = _completion(lambda tangram: (each.name for each in tangram.pools().items))
complete_project = _completion(lambda tangram: (each.name for each in tangram.projects()))
complete_reward_service = _completion(lambda tangram: (each.name for each in tangram.reward_services()))
complete_task = _completion(lambda tangram: (each.task for each in tangram.queues()))
complete_template = _completion(
    lambda tangram: ("host", *(each.name for node in tangram.nodes().items for each in node.templates))
)
