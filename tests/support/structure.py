"""Measures of the code's structure: folders, modules, class names, import cycles and SQL. Run it for a report."""

import ast
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_ROOTS = ("libs", "services")
SHORT_MODULE_NAMES = {"__init__", "__main__", "metrics", "settings"}
SHORT_MODULE_LINES = 40
SQL_MODULE = re.compile(r"(^|_)(queries|repository)$")
SQL_STATEMENT = re.compile(r"^\s*(select|insert into|update|delete from|with)\s", re.IGNORECASE)


@dataclass(frozen=True)
class SourceModule:
    """One Python file of libs or services."""

    name: str
    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def stem(self) -> str:
        return self.path.stem

    def class_names(self) -> list[str]:
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]


def source_modules() -> list[SourceModule]:
    """Return every module of libs and services. Programs that run inside a sandbox are modules too."""
    found = []
    for base in PACKAGE_ROOTS:
        for path in sorted((ROOT / base).glob("arl_*/**/*.py")):
            name = ".".join(path.relative_to(ROOT / base).with_suffix("").parts).removesuffix(".__init__")
            found.append(SourceModule(name, path, path.read_text()))
    return found


def modules_per_folder(modules: list[SourceModule]) -> Counter[Path]:
    """Count the modules of each folder, `__init__` and `__main__` included."""
    return Counter(each.path.parent.relative_to(ROOT) for each in modules)


def repeated_class_names(modules: list[SourceModule]) -> dict[str, list[str]]:
    """Return the class names that more than one module defines, with those modules."""
    owners: dict[str, set[str]] = defaultdict(set)
    for each in modules:
        for name in each.class_names():
            owners[name].add(each.name)
    return {name: sorted(where) for name, where in owners.items() if len(where) > 1}


def one_word_class_names(modules: list[SourceModule]) -> list[str]:
    """Return the class names that are a single word, such as `Place`."""
    names = {name.strip("_") for each in modules for name in each.class_names()}
    return sorted(name for name in names if re.fullmatch(r"[A-Z][a-z0-9]*|[A-Z]+", name))


def class_name_count(modules: list[SourceModule]) -> int:
    return len({name for each in modules for name in each.class_names()})


def short_modules(modules: list[SourceModule]) -> list[SourceModule]:
    """Return the modules under 40 lines, `__init__`, `__main__`, `metrics` and `settings` aside."""
    return [each for each in modules if each.lines < SHORT_MODULE_LINES and each.stem not in SHORT_MODULE_NAMES]


def modules_with_sql(modules: list[SourceModule]) -> list[str]:
    """Return the modules that hold SQL and are neither `queries` nor `repository` nor a table definition."""
    return [each.name for each in modules if not SQL_MODULE.search(each.stem) and _has_sql(each)]


def _has_sql(module: SourceModule) -> bool:
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and SQL_STATEMENT.match(node.value)
        and (" from " in node.value or " set " in node.value or " into " in node.value or "\n" in node.value)
        for node in ast.walk(module.tree)
    )


def import_graph(modules: list[SourceModule]) -> dict[str, set[str]]:
    """Map each module to the modules that it imports when it is loaded. Imports inside functions do not count."""
    names = {each.name for each in modules}
    return {each.name: _imports(each, names) - {each.name} for each in modules}


def _imports(module: SourceModule, names: set[str]) -> set[str]:
    found: set[str] = set()
    for node in _load_time_nodes(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
    return found & names


def _load_time_nodes(tree: ast.Module) -> list[ast.stmt]:
    nodes: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes.append(node)
        if isinstance(node, ast.If | ast.Try):
            nodes.extend(node.body)
    return nodes


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of two or more modules (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = []
            while not component or component[-1] != name:
                component.append(stack.pop())
            if len(component) > 1:
                cycles.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return cycles


def report() -> dict[str, object]:
    """Return every measure as values that JSON can hold."""
    modules = source_modules()
    folders = modules_per_folder(modules)
    single, total = one_word_class_names(modules), class_name_count(modules)
    return {
        "modules": len(modules),
        "lines": sum(each.lines for each in modules),
        "lines_without_bench": sum(each.lines for each in modules if not each.name.startswith("arl_bench")),
        "largest_folders": {str(path): count for path, count in folders.most_common(5)},
        "import_cycles": import_cycles(import_graph(modules)),
        "repeated_class_names": repeated_class_names(modules),
        "class_names": total,
        "one_word_class_names": single,
        "one_word_share": round(len(single) / total, 3),
        "app_state_uses": sum(each.text.count("app.state.") for each in modules),
        "modules_with_sql": modules_with_sql(modules),
        "files_over_400_lines": [each.name for each in modules if each.lines > 400],
        "short_modules": {each.name: each.lines for each in short_modules(modules)},
    }


if __name__ == "__main__":
    import json

    print(json.dumps(report(), indent=2))
