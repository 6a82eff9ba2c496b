"""Rules of the code's architecture."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("libs", "services", "migrations", "tests") for path in (ROOT / folder).rglob("*.py")
)
FILE_LINES = 400
FUNCTION_LINES = 60


def test_dependencies_point_down() -> None:
    found = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_within_length_limits(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node.name for node in functions if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES]
    assert not long


def test_sdk_imports_no_server_code() -> None:
    program = "import sys, arl_tangram; print(sorted(m for m in sys.modules if m.partition('.')[0] in %r))"
    servers = {"fastapi", "sqlalchemy", "asyncpg", "aiohttp", "uvicorn", "numpy", "alembic", "arl_kit", "arl_store"}
    found = subprocess.run([sys.executable, "-c", program % servers], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_top_level_folders_are_not_packages() -> None:
    assert not [
        folder for folder in ("libs", "services", "migrations", "tests") if (ROOT / folder / "__init__.py").exists()
    ]
