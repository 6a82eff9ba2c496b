"""Code blocks of documentation pages, and the interpreters that execute them."""

import asyncio
import doctest
import json
import re
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

__all__ = ["FRAMEWORK_PAGES", "BlockFailed", "CodeBlock", "blocks_of", "interpreters", "matches"]

LANGUAGES = ("python", "bash")
FRAMEWORK_PAGES = ("harbor", "inspect", "mini-swe-agent", "nemo-gym-sandbox")
"""Guides whose blocks need a framework. They run in its environment: `make test-frameworks`."""
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL
)
BLOCK_TIMEOUT_S = 90.0

PYTHON_SERVER = """
import contextlib, io, json, os, sys, traceback
replies, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
names = {"__name__": "__main__"}
for line in sys.stdin:
    block, printed, error = json.loads(line), io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block["source"], block["where"], "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps({"printed": printed.getvalue(), "error": error}), file=replies, flush=True)
"""
BASH_SERVER = 'set -euo pipefail; while read -r file; do source "$file" </dev/null >"$file.out"; echo; done'


class BlockFailed(AssertionError):
    """A block of a page raised an error or exited with another code than 0."""


@dataclass(frozen=True)
class CodeBlock:
    """An executable block, and the output that the page shows for it."""

    where: str
    language: str
    source: str
    expected: str | None


def blocks_of(page: Path) -> list[CodeBlock]:
    """Return the executable blocks of a page in order. A block with the title `not run` is left out."""
    text, found = page.read_text(), []
    fences = list(FENCE.finditer(text))
    for fence, following in zip_longest(fences, fences[1:]):
        if fence["language"] in LANGUAGES and 'title="not run"' not in fence["info"]:
            is_output = following is not None and following["language"] == "text" and "output" in following["info"]
            expected = textwrap.dedent(following["text"]) if following is not None and is_output else None
            line = text.count("\n", 0, fence.start()) + 1
            found.append(CodeBlock(f"{page.name}:{line}", fence["language"], textwrap.dedent(fence["text"]), expected))
    return found


def matches(expected: str, printed: str) -> bool:
    """Compare an output with the one that a page shows, in which `...` stands for any text."""
    return doctest.OutputChecker().check_output(_trimmed(expected), _trimmed(printed), doctest.ELLIPSIS)


def _trimmed(text: str) -> str:
    """Return the text without spaces at the ends of lines, which a page does not show."""
    return "".join(f"{line.rstrip()}\n" for line in text.strip().splitlines())


@dataclass
class BlockRunner:
    """A process for each language, in which the blocks of a page run one after another."""

    directory: Path
    processes: Mapping[str, asyncio.subprocess.Process]
    runs: int = 0

    async def run(self, block: CodeBlock) -> str:
        """Run a block and return what it printed. Raises BlockFailed."""
        process = self.processes[block.language]
        assert process.stdin is not None
        assert process.stdout is not None
        self.runs += 1
        script = self.directory / f"block-{self.runs}"
        script.write_text(block.source)
        request = (
            str(script) if block.language == "bash" else json.dumps({"source": block.source, "where": block.where})
        )
        process.stdin.write(f"{request}\n".encode())
        async with asyncio.timeout(BLOCK_TIMEOUT_S):
            reply = await process.stdout.readline()
        if block.language == "python":
            answer = json.loads(reply)
            if answer["error"] is not None:
                raise BlockFailed(f"{block.where}: {answer['error']}")
            return str(answer["printed"])
        printed = Path(f"{script}.out").read_text()
        if not reply:  # the shell ended
            raise BlockFailed(f"{block.where}: exit code {await process.wait()}\n{printed}\n{await self._errors()}")
        return printed

    async def _errors(self) -> str:
        return (self.directory / "errors").read_text()[-2000:]


@asynccontextmanager
async def interpreters(
    directory: Path, environment: Mapping[str, str], *, python: Path | str = sys.executable
) -> AsyncIterator[BlockRunner]:
    """Start the interpreters of a page. Their working directory is empty."""
    cwd = directory / "cwd"
    cwd.mkdir()
    commands = {
        "python": (str(python), "-u", "-c", PYTHON_SERVER),
        "bash": ("bash", "--noprofile", "--norc", "-c", BASH_SERVER),
    }
    with (directory / "errors").open("wb") as errors:
        processes = {
            language: await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=dict(environment),
                limit=1 << 24,
            )
            for language, command in commands.items()
        }
    try:
        yield BlockRunner(directory, processes)
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
