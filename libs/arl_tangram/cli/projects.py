"""`projects`: which share of the nodes each has."""

import sys
from typing import Annotated

import typer
from pydantic import BaseModel

from arl_tangram.cli.actions import connected
from arl_tangram.cli.output import Format, FormatOption, stdout
from arl_tangram.cli.state import DirOption
from arl_wire.projects import Project, ProjectList

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Projects, and their shares of the nodes.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="projects")


@group.command("list")
def list_projects(directory: DirOption, output: FormatOption = Format.TEXT) -> None:
    """Show the projects: all of them with a key of project `default`, ours with any other."""
    with connected(directory) as tangram:
        projects = tangram.projects()
    if output is Format.JSON:
        _print_json(ProjectList(items=projects))
        return
    for project in projects:
        stdout.print(_line(project), markup=False)


@group.command("weight")
def weigh_project(
    directory: DirOption,
    name: Annotated[str, typer.Argument(help="As `projects list` shows it.")],
    weight: Annotated[float, typer.Argument(min=0.01, max=100, help="Twice the weight, twice the share.")],
    output: FormatOption = Format.TEXT,
) -> None:
    """Give a project its share beside the others, for when they want more than there is."""
    with connected(directory) as tangram:
        project = tangram.weigh_project(name, weight)
    if output is Format.JSON:
        _print_json(project)
    else:
        stdout.print(_line(project), markup=False)


def _line(project: Project) -> str:
    return f"{project.name}  weight {project.weight:g}"


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")
