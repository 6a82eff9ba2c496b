"""The program of a code context: results, errors and formats as data."""

import json
import os
from typing import Any

import pytest

from arl_gateway.compat.e2b.guest.kernel import Kernel, describe


def run(*cells: str, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of the last cell without those that every cell has."""
    source, target = os.pipe()
    kernel = Kernel(target)
    for cell in cells[:-1]:
        kernel.run({"code": cell})
    with os.fdopen(source, "rb") as messages:
        before = len(os.read(source, 1 << 16).splitlines()) if cells[:-1] else 0
        assert before or not cells[:-1]
        kernel.run({"code": cells[-1], **options})
        os.close(target)
        found = [json.loads(line) for line in messages]
    assert found[0] == {"type": "number_of_executions", "execution_count": len(cells)}
    assert found[-1] == {"type": "end_of_execution"}
    return found[1:-1]


def test_last_expression_is_the_main_result_and_variables_stay() -> None:
    assert run("x = 20", "x + 1") == [{"type": "result", "is_main_result": True, "text": "21"}]
    assert run("x = 20") == []
    assert run("None") == []


def test_errors_are_data_with_the_lines_of_the_cell() -> None:
    [error] = run("def f():\n    return 1 / 0\nf()")
    assert (error["type"], error["name"], error["value"]) == ("error", "ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in error["traceback"]
    assert "kernel.py" not in error["traceback"]
    assert [each["name"] for each in run("def f(:")] == ["SyntaxError"]
    assert [each["name"] for each in run("raise SystemExit(3)")] == ["SystemExit"]


def test_await_works_at_the_top_level() -> None:
    assert run("import asyncio\nawait asyncio.sleep(0, 7)")[0]["text"] == "7"


def test_variables_of_a_cell_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_CELL", "before")
    assert run("import os; os.environ['OF_CELL']", envs={"OF_CELL": "cell"})[0]["text"] == "cell"
    assert os.environ["OF_CELL"] == "before"


def test_displayed_values_are_not_the_main_result() -> None:
    code = "class H:\n  def _repr_html_(self): return '<b>1</b>'\n  def __repr__(self): return 'H'\ndisplay(H())\nH()"
    html = {"type": "result", "text": "H", "html": "<b>1</b>"}
    assert run(code) == [{**html, "is_main_result": False}, {**html, "is_main_result": True}]


class _Bundle:
    def _repr_mimebundle_(self) -> dict[str, Any]:
        return {"text/plain": "p", "image/png": b"\x89", "application/unknown": "x"}

    def _repr_latex_(self) -> str:
        raise ValueError("this format fails")


def test_formats_come_from_bundles_and_failing_ones_are_absent() -> None:
    assert describe(_Bundle()) == {"text": "p", "png": "iQ=="}
    assert describe("it's") == {"text": "it's"}
    assert set(describe(_Bundle)) == {"text"}
