"""The process behind `tangram templates`: `DIRECTORY import PATH NAME MAX_MIB MAX_MEMBERS | list | remove NAME`.

The answer is JSON on standard output. An error is a sentence on standard error, with exit code 1. Unreadable records of
other templates are reported on standard error and do not fail the command.
"""

import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path

from arl_core.images.references import is_image_name
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template, remove_template
from arl_cpu.templates.template import TemplateError
from arl_cpu.templates.template_store import TemplateInUse, TemplateStore, UnknownTemplate

__all__ = ["main"]

_MAX_MEMORY_BYTES = 1 << 30
"""Memory limit of the process. The headers of an archive are read into memory at any size they claim."""


def main(arguments: list[str]) -> int:
    """Execute a command and return the exit code."""
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    directory, command, *rest = arguments
    store = TemplateStore(Path(directory))
    try:
        match command, rest:
            case "import", [path, name, max_mib, max_members]:
                budget = ImportBudget(max_bytes=int(max_mib) << 20, max_members=int(max_members))
                answer = [import_template(store, Path(path), name, budget=budget)]
            case "list", []:
                answer = [each for each in store.list_templates() if not is_image_name(each.name)]
            case "remove", [name]:
                answer = [each for each in store.list_templates() if each.name == name]
                remove_template(store, name)
            case _:
                raise TemplateError(f"the command {command} {' '.join(rest)} is invalid")
    except UnknownTemplate as unknown:
        there = ", ".join(each.name for each in store.list_templates() if not is_image_name(each.name)) or "none"
        return _fail(f"template {unknown} does not exist. Available: {there}")
    except TemplateInUse as used:
        return _fail(f"environments still use template {used.args[0].removesuffix('.json')}; end them first")
    except (TemplateError, OSError, ValueError) as error:
        return _fail(str(error))
    for name, why in store.damaged_records().items():
        sys.stderr.write(
            f"the record of template {name} cannot be read ({why}); import the template again, or remove it\n"
        )
    sys.stdout.write(json.dumps([asdict(template) for template in answer]) + "\n")
    return 0


def _fail(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
