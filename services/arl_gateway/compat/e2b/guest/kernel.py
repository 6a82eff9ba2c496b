"""Program of a code context: runs cells of Python, and reports output, results and errors as JSON lines.

Requests come on standard input. Messages go to the descriptor that is the first argument.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import inspect
import io
import json
import linecache
import os
import subprocess
import sys
import time
import traceback
from typing import Any

__all__ = ["Kernel", "describe", "main"]

METHODS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
    "javascript": "_repr_javascript_",
}
MIME_NAMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript",
}  # fmt: skip


class _Stream(io.TextIOBase):
    """A text stream whose writes are messages."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel, self._name = kernel, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._kernel.send({"type": self._name, "text": text, "timestamp": time.time_ns()})
        return len(text)


class Kernel:
    """The state of a context: its variables and the count of its cells."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._count = 0
        self.variables: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        self.variables["display"] = self.display

    def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._target, data) :]

    def display(self, *values: Any) -> None:
        """Report values as results that are not the cell's own."""
        for value in values:
            self.send({"type": "result", "is_main_result": False, **describe(value)})

    def run(self, request: dict[str, Any]) -> None:
        """Run a cell to its end."""
        self._count += 1
        self.send({"type": "number_of_executions", "execution_count": self._count})
        before = dict(os.environ)
        os.environ.update(request.get("envs") or {})
        try:
            if request.get("language") == "bash":
                subprocess.run(["bash", "-c", request["code"]], check=False)  # noqa: S607 - the sandbox's own
            else:
                self._run_python(request["code"])
        except BaseException as error:  # noqa: BLE001 - every error of a cell is data, SystemExit included
            self._report(error)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.send({"type": "end_of_execution"})

    def _run_python(self, code: str) -> None:
        name = f"<cell {self._count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._evaluate(compile(tree, name, "exec", flags))
        if isinstance(last, ast.Expr):
            value = self._evaluate(compile(ast.Expression(last.value), name, "eval", flags))
            if value is not None:
                self.variables["_"] = value
                self.send({"type": "result", "is_main_result": True, **describe(value)})
        self._show_figures()

    def _evaluate(self, code: Any) -> Any:
        value = eval(code, self.variables)  # noqa: S307 - the purpose of this program
        return asyncio.run(value) if code.co_flags & inspect.CO_COROUTINE else value

    def _show_figures(self) -> None:
        """Report the open figures of matplotlib, and close them."""
        plots = sys.modules.get("matplotlib.pyplot")
        for number in plots.get_fignums() if plots is not None else ():
            image = io.BytesIO()
            figure = plots.figure(number)  # type: ignore[union-attr]
            figure.savefig(image, format="png")
            png = base64.b64encode(image.getvalue()).decode()
            self.send({"type": "result", "is_main_result": False, "text": repr(figure), "png": png})
        if plots is not None:
            plots.close("all")

    def _report(self, error: BaseException) -> None:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        lines = traceback.format_exception(type(error), error, frames)
        self.send({"type": "error", "name": type(error).__name__, "value": str(error), "traceback": "".join(lines)})


def describe(value: Any) -> dict[str, Any]:
    """Return the representations of a value by format. Text of a string has no quotes."""
    found: dict[str, Any] = {"text": value if isinstance(value, str) else repr(value)}
    if isinstance(value, type):
        return found
    if (bundle := _call(value, "_repr_mimebundle_")) is not None:
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        found.update({MIME_NAMES[mime]: _plain(data) for mime, data in bundle.items() if mime in MIME_NAMES})
    for name, method in METHODS.items():
        if (data := _call(value, method)) is not None:
            found[name] = _plain(data)
    return found


def _call(value: Any, method: str) -> Any:
    try:
        return getattr(value, method)()
    except Exception:  # noqa: BLE001 - a format that fails is absent
        return None


def _plain(data: Any) -> Any:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else data


def main() -> None:
    """Run cells until standard input ends."""
    source = os.fdopen(os.dup(0), "rb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    kernel = Kernel(int(sys.argv[1]))
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.stdout, sys.stderr = _Stream(kernel, "stdout"), _Stream(kernel, "stderr")
    sys.path[0] = ""
    while True:
        try:
            line = source.readline()
            if not line:
                return
            kernel.run(json.loads(line))
        except KeyboardInterrupt:
            continue  # an interrupt between two cells


if __name__ == "__main__":
    main()
