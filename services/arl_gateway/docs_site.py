"""The documentation at `/docs`: the built site, or a page that lists the operations if no site is built.

Both need no API key and load nothing from other hosts.
"""

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

__all__ = ["serve_docs"]

CHECKOUT_SITE = Path(__file__).parents[2] / "site"
"""Output of `make docs`. An installed wheel has no such directory."""
METHODS = ("get", "head", "post", "put", "patch", "delete")
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
code {{ font: 14px ui-monospace, monospace; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; width: 100%; }}
td {{ border-top: 1px solid #8884; padding: 0.3rem 0.6rem 0.3rem 0; vertical-align: top; }}
td:first-child {{ width: 4.5rem; }}
</style>
</head>
<body>
<h1>{title} API</h1>
<p>The documentation is not built. Run <code>make docs</code> in the checkout, or set <code>TANGRAM_DOCS_DIR</code>
to the directory of a built site.</p>
<p>The full description of the API is <a href="../openapi.json">openapi.json</a>.</p>
{sections}
</body>
</html>
"""


def serve_docs(app: FastAPI, directory: Path | None) -> None:
    """Add the route. A site that is built later is served without a restart."""
    site = (directory or CHECKOUT_SITE).absolute()
    files = StaticFiles(directory=site, html=True, check_dir=False)

    async def docs(request: Request) -> Response:
        path = request.path_params["path"]
        if (site / "index.html").is_file():
            return _with_relative_location(await files.get_response(path, request.scope), path)
        if path:
            raise HTTPException(404, "the documentation is not built; run `make docs`")
        return HTMLResponse(_operation_list(app.title, app.openapi))

    async def index(request: Request) -> Response:
        return RedirectResponse("docs/")  # relative: the server does not know its public address

    app.add_route("/docs", index, methods=["GET"], include_in_schema=False)
    app.add_route("/docs/{path:path}", docs, methods=["GET"], include_in_schema=False)


def _with_relative_location(response: Response, path: str) -> Response:
    """Redirect to a directory by its name. The framework builds the address from the `Host` of the client."""
    if isinstance(response, RedirectResponse):
        response.headers["location"] = f"{path.rstrip('/').rpartition('/')[2]}/"
    return response


def _operation_list(title: str, openapi: Callable[[], Mapping[str, Any]]) -> str:
    """Return a page with the operations of the OpenAPI document, by tag."""
    document = openapi()
    rows: dict[str, list[str]] = {tag["name"]: [] for tag in document.get("tags", ())}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                cells = f"<code>{method.upper()}</code>", f"<code>{escape(path)}</code>", escape(operation["summary"])
                row = f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
                rows.setdefault(operation["tags"][0], []).append(row)
    sections = [f"<h2>{escape(tag)}</h2><table>{''.join(lines)}</table>" for tag, lines in rows.items() if lines]
    return PAGE.format(title=escape(title), sections="\n".join(sections))
