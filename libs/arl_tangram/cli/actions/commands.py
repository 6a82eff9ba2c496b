"""`list`, `logs`, `get` and `cancel`: actions from a terminal."""

from itertools import islice
from typing import Annotated
from uuid import UUID

import typer

from arl_core.domain.states import ActionState
from arl_tangram.cli.actions.output import exit_code_of, print_action, stream_action
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, print_rows, stdout
from arl_wire.actions.action import Action, ActionListResponse

__all__ = ["register"]

ActionArgument = Annotated[UUID, typer.Argument(help="Id of an action.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("list", rich_help_panel="Run")(list_actions)
    app.command(rich_help_panel="Run")(logs)
    app.command(rich_help_panel="Run")(get)
    app.command(rich_help_panel="Run")(cancel)


def list_actions(
    directory: DirOption,
    task: Annotated[str | None, typer.Option(help="Only this task.", autocompletion=complete_task)] = None,
    trajectory: Annotated[str | None, typer.Option(help="Only this trajectory.")] = None,
    state: Annotated[ActionState | None, typer.Option(help="Only this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of actions.")] = 20,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List actions, newest first."""
    with connected_client(directory) as tangram:
        found = list(islice(tangram.list(task=task, trajectory=trajectory, state=state), limit))
    if output is OutputFormat.JSON:
        print_model(ActionListResponse(items=found))
        return
    headings = ("id", "task", "kind", "state", "outcome", "ACT s", "node")
    print_rows(headings, map(_row, found), empty="No action matches. Run one: tangram submit -- echo hello")


def logs(directory: DirOption, id: ActionArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Show the output of an action live and return its exit code."""
    with connected_client(directory) as tangram:
        if output is OutputFormat.JSON:
            [action] = tangram.wait([id])
            print_action(action, output)
        else:
            action = stream_action(tangram, id)
    raise typer.Exit(exit_code_of(action))


def get(
    directory: DirOption,
    id: ActionArgument,
    wait_s: Annotated[float, typer.Option(min=0, max=55, help="Seconds to wait for the outcome.")] = 0.0,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show an action. If it has settled, return its exit code."""
    with connected_client(directory) as tangram:
        action = tangram.get(id, wait_s=wait_s)
    print_action(action, output)
    raise typer.Exit(exit_code_of(action))


def cancel(directory: DirOption, id: ActionArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Request the cancellation of an action."""
    with connected_client(directory) as tangram:
        action = tangram.cancel(id)
    if output is OutputFormat.JSON:
        print_model(action)
    else:
        stdout.print(f"{action.id} {action.outcome or 'cancellation requested'}", markup=False)


def _row(action: Action) -> tuple[str, ...]:
    state = f"{action.state} (cancelling)" if action.cancel_requested and action.outcome is None else str(action.state)
    detail = f" ({action.reason})" if action.reason else ""
    took = f"{action.times.act_s:.3f}" if action.times.act_s is not None else "-"
    outcome = f"{action.outcome}{detail}" if action.outcome else "-"
    return (str(action.id), action.task, action.kind, state, outcome, took, action.node or "-")
