"""The nodes of the Ray engine in one file, from which a restarted controller continues."""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from arl_store.files import replace_file

__all__ = ["RayNodeRecord", "RayNodeTable"]


@dataclass(slots=True, kw_only=True)
class RayNodeRecord:
    """A node on a Ray node."""

    name: str
    pool: str
    ray_node: str
    """Ray's id of the node. A Ray node that starts again has another one."""
    started: bool = False
    """Ray has created its actor. An actor that is missing later was killed by somebody else, or could not run."""
    stop_by_s: float | None = None
    """Seconds since the start of this machine at which the released node is killed; None unless it was released."""

    @property
    def agent(self) -> str:
        """Return the name of its actor. A pool has at most one node on a Ray node."""
        return f"tangram-{self.pool}-{self.ray_node}"


class RayNodeTable:
    """The file. The caller has locked its directory."""

    def __init__(self, path: Path) -> None:
        """Read the file. If there is none, choose a namespace for the actors of this system."""
        self._path = path
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            content = {"namespace": f"tangram-{secrets.token_hex(4)}", "nodes": []}
        self.namespace: str = content["namespace"]
        self.records = {node["name"]: RayNodeRecord(**node) for node in content["nodes"]}
        if not path.exists():
            self.write()

    def of_pool(self, pool: str) -> list[RayNodeRecord]:
        """Return the records of a pool by name."""
        return sorted((each for each in self.records.values() if each.pool == pool), key=lambda each: each.name)

    def put(self, record: RayNodeRecord) -> None:
        """Add or change a record."""
        self.records[record.name] = record
        self.write()

    def drop(self, record: RayNodeRecord) -> None:
        """Remove a record."""
        del self.records[record.name]
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        content = {"namespace": self.namespace, "nodes": [asdict(each) for each in self.records.values()]}
        replace_file(self._path, json.dumps(content, indent=1) + "\n")
