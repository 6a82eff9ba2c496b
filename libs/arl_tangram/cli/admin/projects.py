"""`projects`: the projects and their shares of the nodes."""

from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_project
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, print_rows
from arl_wire.admin.queues import Project, ProjectListResponse

__all__ = ["register"]

HEADINGS = ("project", "weight")
group = typer.Typer(no_args_is_help=True, help="List projects and set their shares.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="projects", rich_help_panel="Operate")


@group.command("list")
def list_projects(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the projects: all with a key of project `default`, else only the key's own project."""
    with connected_client(directory) as tangram:
        projects = tangram.projects()
    if output is OutputFormat.JSON:
        print_model(ProjectListResponse(items=projects))
        return
    print_rows(HEADINGS, map(_row, projects), empty="")


@group.command("weight")
def set_project_weight(
    directory: DirOption,
    name: Annotated[str, typer.Argument(help="Name of a project.", autocompletion=complete_project)],
    weight: Annotated[float, typer.Argument(min=0.01, max=100, help="Weight; twice the weight means twice the share.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Set the share of a project relative to other projects. It applies when demand exceeds capacity."""
    with connected_client(directory) as tangram:
        project = tangram.set_project_weight(name, weight)
    if output is OutputFormat.JSON:
        print_model(project)
    else:
        print_rows(HEADINGS, [_row(project)], empty="")


def _row(project: Project) -> tuple[str, ...]:
    return (project.name, f"{project.weight:g}")
