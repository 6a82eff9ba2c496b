"""The page `reference/errors`: every error class with its code and status, from `arl_wire.errors` and the SDK."""

import inspect
import re
from collections.abc import Iterator
from http import HTTPStatus

from markdown_text import anchor, cell, code, table

from arl_tangram import operations
from arl_wire import errors
from arl_wire.errors import ProblemDetails, TangramError

__all__ = ["error_classes", "render"]

INTRO = """\
# Errors

A response with a status of 400 or above has a body of the type `application/problem+json`
([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). Act on its `code`, which is stable. The Python client raises the
class of the same row. Every class is a subclass of `TangramError`.

An error answers a *request*. The result of an *action* is its outcome, see [States and outcomes](outcomes.md).
"""
CLIENT_NOTE = """\
## Errors of the Python client

The client raises these errors itself. They have no HTTP response.
"""


def error_classes() -> Iterator[type[TangramError]]:
    """Yield the public error classes of the wire, parents first."""
    yield from _subclasses(TangramError, errors.__name__)


def render() -> str:
    rows = []
    for cls in error_classes():
        if cls is TangramError:
            continue
        rows.append([code(cls.code), str(cls.status), cell(cls.title), code(cls.__name__), cell(_meaning(cls))])
    retried = ", ".join(map(str, sorted(operations.RETRYABLE_STATUSES)))
    fields = [
        [code(name), cell(field.description or FIELD_TEXTS[name])]
        for name, field in ProblemDetails.model_fields.items()
    ]
    client = [[code(cls.__name__), cell(inspect.getdoc(cls) or "")] for cls in _client_errors()]
    return "\n".join(
        [
            INTRO,
            f"## Codes {anchor('codes')}\n",
            f"The Python client repeats a request with the status {retried} until its `retry_timeout_s` has passed.\n",
            table(["Code", "Status", "Title", "Python class", "Meaning"], rows),
            f"A status without a row, such as {HTTPStatus.METHOD_NOT_ALLOWED.value}, has its phrase as code: "
            "`method_not_allowed`.\n",
            f"## Problem document {anchor('problem')}\n",
            table(["Field", "Content"], fields),
            CLIENT_NOTE,
            table(["Python class", "Meaning"], client),
        ]
    )


FIELD_TEXTS = {
    "type": "Always `about:blank`.",
    "title": "Short text for the code.",
    "status": "HTTP status.",
    "detail": "What is wrong with this request.",
    "code": "Stable code from the table above.",
    "errors": "The fields with an error, each with `field` and `message`.",
    "trace_id": "Trace id of the request. It finds the request in the logs of the services.",
}


def _subclasses(cls: type[TangramError], module: str) -> Iterator[type[TangramError]]:
    if cls.__module__ == module:
        yield cls
    for sub in cls.__subclasses__():
        yield from _subclasses(sub, module)


def _client_errors() -> list[type[Exception]]:
    return [operations.ActionFailed, operations.BatchRefused, operations.WaitTimeout]


def _meaning(cls: type[TangramError]) -> str:
    """Return the docstring of the class, else its line in the tree of the module's docstring, else the title."""
    if cls.__dict__.get("__doc__"):
        return inspect.cleandoc(str(cls.__doc__))
    line = re.search(rf"[├└]── {cls.__name__}(?: \d+)? {{2,}}(\S.*)$", errors.__doc__ or "", re.MULTILINE)
    if line is None:
        return f"{cls.title}."
    first, *rest = line[1].rstrip(".").split(" ", 1)
    # The first word may be a field; only a plain word gets a capital letter.
    return f"{' '.join([first.capitalize() if first.isalpha() else f'`{first}`', *rest])}."
