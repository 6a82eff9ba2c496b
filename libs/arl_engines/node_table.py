"""The nodes of an engine in one file, from which a restarted controller continues."""

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from arl_store.files import replace_file

__all__ = ["EngineNodeTable", "table_namespace"]


class _Record(Protocol):
    """A dataclass with these fields, whose other fields are values of JSON."""

    name: str
    pool: str


RecordT = TypeVar("RecordT", bound=_Record)


def table_namespace(path: Path) -> str:
    """Return the namespace of a table, which is created if it does not exist. The caller has locked its directory."""
    return EngineNodeTable[Any](path, dict).namespace


class EngineNodeTable(Generic[RecordT]):
    """The file. The caller has locked its directory."""

    def __init__(self, path: Path, to_record: Callable[..., RecordT]) -> None:
        """Read the file. If there is none, choose a namespace: the mark of this system's objects in the engine."""
        self._path = path
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            content = {"namespace": f"tangram-{secrets.token_hex(4)}", "nodes": []}
        self.namespace: str = content["namespace"]
        self.records: dict[str, RecordT] = {node["name"]: to_record(**node) for node in content["nodes"]}
        if not path.exists():
            self.write()

    def of_pool(self, pool: str) -> list[RecordT]:
        """Return the records of a pool by name."""
        return sorted((each for each in self.records.values() if each.pool == pool), key=lambda each: each.name)

    def put(self, record: RecordT) -> None:
        """Add or change a record."""
        self.records[record.name] = record
        self.write()

    def drop(self, record: RecordT) -> None:
        """Remove a record."""
        del self.records[record.name]
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        nodes = [asdict(each) for each in self.records.values()]  # type: ignore[call-overload]
        content = {"namespace": self.namespace, "nodes": nodes}
        replace_file(self._path, json.dumps(content, indent=1) + "\n")
