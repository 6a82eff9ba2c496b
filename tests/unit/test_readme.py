"""The README says what the code does."""

import ast
import importlib
import re
from pathlib import Path

from arl_core.domain.states import TRANSITIONS, ActionOutcome

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_diagram_draws_every_edge_and_no_other() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)", README, re.MULTILINE))
    assert drawn == {(edge.old.value, edge.new.value) for edge in TRANSITIONS if edge.old is not edge.new}


def test_imports_of_python_examples_exist() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).startswith("arl_")]
    assert ours
    for node in ours:
        module = importlib.import_module(str(node.module))
        assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_the_table_names_every_outcome() -> None:
    section = README.partition("## What an outcome means")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {outcome.value for outcome in ActionOutcome}
