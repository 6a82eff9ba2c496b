"""`projects`: the projects and their shares of the nodes."""

import sys
from typing import Annotated

import typer
from pydantic import BaseModel

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, stdout
from arl_wire.admin.queues import Project, ProjectListResponse

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Projects, and their shares of the nodes.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="projects")


@group.command("list")
def list_projects(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the projects: all with a key of project `default`, else only the key's own project."""
    with connected_client(directory) as tangram:
        projects = tangram.projects()
    if output is OutputFormat.JSON:
        _print_json(ProjectListResponse(items=projects))
        return
    for project in projects:
        stdout.print(_format_project(project), markup=False)


@group.command("weight")
def set_project_weight(
    directory: DirOption,
    name: Annotated[str, typer.Argument(help="As `projects list` shows it.")],
    weight: Annotated[float, typer.Argument(min=0.01, max=100, help="Twice the weight, twice the share.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Set the share of a project relative to other projects. It applies when demand exceeds capacity."""
    with connected_client(directory) as tangram:
        project = tangram.set_project_weight(name, weight)
    if output is OutputFormat.JSON:
        _print_json(project)
    else:
        stdout.print(_format_project(project), markup=False)


def _format_project(project: Project) -> str:
    return f"{project.name}  weight {project.weight:g}"


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")
