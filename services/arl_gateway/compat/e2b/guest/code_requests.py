"""Requests about code contexts."""

from __future__ import annotations

import itertools
from typing import Any

from arl_gateway.compat.e2b.guest.accounts import Account
from arl_gateway.compat.e2b.guest.event_buffer import EventBuffer
from arl_gateway.compat.e2b.guest.executions import CellExecution, CodeContext
from arl_gateway.compat.e2b.guest.file_operations import GuestError

__all__ = ["CodeRequests"]


class CodeRequests:
    """The code contexts of a sandbox."""

    OPERATIONS = ("context", "contexts", "restart_context", "remove_context", "execute", "interrupt")

    def __init__(self, sources: dict[int, EventBuffer], numbers: itertools.count[int], account: Account) -> None:
        self._sources, self._numbers, self._account = sources, numbers, account
        self._defaults: dict[str, CodeContext] = {}
        """Contexts of cells that name none, by language."""
        self._cells: dict[int, tuple[CodeContext, CellExecution]] = {}

    def perform(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Perform an operation. Raises GuestError."""
        if op == "context":
            return _shown(self._create(arguments))
        if op == "contexts":
            return {"contexts": [_shown(each) for each in self._contexts()]}
        if op == "execute":
            return self._execute(arguments)
        if op == "interrupt":
            if (known := self._cells.get(arguments["pid"])) is not None and not known[1].has_ended:
                known[0].interrupt(known[1])
            return {}
        context = self._find(arguments["id"])
        if op == "restart_context":
            context.restart()
            return {}
        context.restart()
        context.close()
        del self._sources[context.pid]
        self._defaults = {name: each for name, each in self._defaults.items() if each is not context}
        return {}

    def _execute(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if (id := arguments.get("context_id")) is not None:
            context = self._find(id)
        else:
            language = arguments.get("language") or "python"
            if (found := self._defaults.get(language)) is None:
                found = self._defaults[language] = self._create(arguments)
            context = found
        cell = CellExecution(next(self._numbers), {"code": arguments["code"], "envs": arguments.get("envs")})
        self._cells = {pid: each for pid, each in self._cells.items() if not each[1].has_ended}
        self._cells[cell.pid] = context, cell
        self._sources[cell.pid] = cell
        context.submit(cell)
        return {"pid": cell.pid}

    def _create(self, arguments: dict[str, Any]) -> CodeContext:
        env = {**self._account.variables(), **(arguments.get("variables") or {})}
        language, cwd = arguments.get("language") or "python", arguments.get("cwd") or ""
        context = CodeContext(next(self._numbers), language, cwd, self._account, env)
        self._sources[context.pid] = context
        return context

    def _contexts(self) -> list[CodeContext]:
        return [each for each in self._sources.values() if isinstance(each, CodeContext)]

    def _find(self, id: str) -> CodeContext:
        for each in self._contexts():
            if each.id == id:
                return each
        raise GuestError("not_found", f"context {id} not found")


def _shown(context: CodeContext) -> dict[str, Any]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
