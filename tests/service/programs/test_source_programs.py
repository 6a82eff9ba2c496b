"""Test that a program in `source` behaves as `python3 main.py` does in the same directory.

Each program of `programs.txt` runs in both ways. Output, end, and remaining files must be equal.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec, ExecutionReport
from support.sandbox import Bench, a_bench, a_command, a_program, an_environment, sandboxes

TABLE = Path(__file__).with_name("programs.txt")
LISTING = (
    r"find . -mindepth 1 ! -path ./main.py ! -name '*.pyc' \( -type d -printf '%p\n' -o -printf '%p %y %s\n' \) | sort;"
    " rm -rf ./* ./.[!.]* /tmp/*"
)
MEMORY_MIB = 512
ADDRESS = re.compile("0x[0-9a-f]{8,}")
"""An object's address, which differs between any two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgram:
    """A program of the table, with its files, variables and input."""

    name: str
    source: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""

    @classmethod
    def parse(cls, text: str) -> "TableProgram":
        """Parse a name, lines with `@` about the program, its files after `---` lines, and the source."""
        name, _, body = text.partition("\n")
        files: dict[str, bytes] = {}
        env, stdin, source = {}, b"", body
        while source.startswith("@"):
            option, _, source = source.partition("\n")
            kind, _, value = option[1:].partition(" ")
            if kind == "stdin":
                stdin = value.encode().decode("unicode_escape").encode()
            elif kind == "env":
                env.update([value.split("=", 1)])
            else:
                source = source.replace("\n", "\r\n") if kind == "crlf" else f"\0{source}"
        while source.startswith("---"):
            header, _, rest = source.partition("\n")
            if header == "---":
                source = rest
                break
            content, _, after = rest.partition("---")
            files[header.removeprefix("--- ")] = content.encode()
            source = f"---{after}"
        return cls(name=name, source=source, files=files, env=env, stdin=stdin)


PROGRAMS = [TableProgram.parse(each) for each in TABLE.read_text().removeprefix("=== ").split("\n=== ")]
QUICK = (
    *("file_is_beside_data", "loaded_modules", "main_module", "stdout_is_buffered", "finalizers", "suggestion"),
    *("unraisable", "warning_source_line", "inspect_source", "executor_with_main_class", "itself_by_argv_name"),
    *("shadowed_many", "changes_its_own_file", "keyboard_interrupt", "debugger", "descriptors", "command_line"),
)
"""Programs of the gate. All others run with the slow tests."""


LISTED = "import os; print(sorted(os.listdir('.')))"


@pytest.fixture(scope="module", params=sandboxes(slow=("landlock",), both_agents=True))
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("programs"), request.param) as bench:
        yield bench


@pytest.fixture
async def kept(bench: Bench) -> AsyncIterator[EnvironmentSpec]:
    environment = an_environment(memory_mib=MEMORY_MIB)
    yield environment
    await bench.destroy(environment.id)


def parts(programs: Sequence[TableProgram], size: int) -> Iterator[Sequence[TableProgram]]:
    return (programs[at : at + size] for at in range(0, len(programs), size))


def test_table_has_distinct_programs() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(names) == len(set(names)) >= 150
    assert set(QUICK) < set(names)


async def test_source_behaves_as_a_file_for_programs_of_the_gate(bench: Bench) -> None:
    await compare(bench, [program for program in PROGRAMS if program.name in QUICK])


@pytest.mark.slow
@pytest.mark.parametrize("programs", [*parts(PROGRAMS, 20)], ids=lambda programs: programs[0].name)
async def test_source_behaves_as_a_file_for_every_program(bench: Bench, programs: Sequence[TableProgram]) -> None:
    await compare(bench, programs)


async def test_source_file_is_removed_at_the_end_of_the_action(bench: Bench, kept: EnvironmentSpec) -> None:
    report = await bench.run(a_program(LISTED, environment=kept, fetch=("main.py",)))
    assert (report.stdout.data, report.missing_files) == (b"['main.py']\n", ("main.py",))
    failed = await bench.run(a_program("import time; time.sleep(60)", environment=kept, timeout_s=0.3))
    assert failed.outcome == "user_timeout"
    assert (await bench.run(a_command("ls", environment=kept))).stdout.data == b""


async def test_source_does_not_replace_a_file_of_the_program(bench: Bench, kept: EnvironmentSpec) -> None:
    files = {"main.py": b"mine = 1"}
    report = await bench.run(a_program(f"{LISTED}; import main; print(main.mine)", environment=kept, files=files))
    assert report.stdout.data == b"['main.py', 'main_1.py']\n1\n"
    assert (await bench.run(a_command("ls", environment=kept))).stdout.data.split() in (
        [b"main.py"],
        [b"__pycache__", b"main.py"],
    )


async def test_file_that_the_program_changed_stays(bench: Bench, kept: EnvironmentSpec) -> None:
    for number, change in enumerate(("open(__file__, 'w').write('x')", "import os; os.rename(__file__, 'moved.py')")):
        await bench.run(a_program(change, environment=kept))
        left = await bench.run(a_command("ls", environment=kept))
        assert left.stdout.data.split() == [b"main.py", b"moved.py"][: number + 1]


async def test_source_runs_in_a_directory_that_cannot_be_written(bench: Bench, kept: EnvironmentSpec) -> None:
    source = "import os; print(os.getcwd(), os.path.exists(__file__))"
    report = await bench.run(a_program(source, environment=kept, cwd="/usr"))
    assert (report.outcome, report.stdout.data) == ("ok", b"/usr True\n")
    left = await bench.run(a_command("sh", "-c", "ls $TMPDIR", environment=kept))
    assert left.stdout.data == b""


async def test_source_runs_on_a_full_disk_and_can_free_it(bench: Bench) -> None:
    full = an_environment(memory_mib=MEMORY_MIB, disk_mib=4)
    await bench.run(a_command("sh", "-c", "cat /dev/zero > big", environment=full))
    report = await bench.run(a_program("import os; os.unlink('big'); print('freed')", environment=full))
    assert (report.outcome, report.stdout.data) == ("ok", b"freed\n"), report
    assert (await bench.run(a_program("print(__file__[-7:])", environment=full))).stdout.data == b"main.py\n"
    await bench.destroy(full.id)


async def test_hash_seed_differs_between_sources_of_one_environment(bench: Bench, kept: EnvironmentSpec) -> None:
    reports = [await bench.run(a_program("print(hash('text'))", environment=kept)) for _ in range(3)]
    assert len({report.stdout.data for report in reports}) > 1


async def compare(bench: Bench, programs: Sequence[TableProgram]) -> None:
    ways = [an_environment(memory_mib=MEMORY_MIB) for _ in range(2)]
    different = {}
    try:
        roots = [await root(bench, way) for way in ways]
        for program in programs:
            source, file = await asyncio.gather(by_source(bench, program, ways[0]), by_file(bench, program, ways[1]))
            # Without namespaces, each environment has its own path on the host.
            if source.replace(roots[0], "/") != file.replace(roots[1], "/"):
                different[program.name] = {"source": source, "file": file}
    finally:
        await bench.destroy(*(way.id for way in ways))
    assert different == {}, "\n".join(f"{name}: {each}" for name, each in different.items())


async def root(bench: Bench, environment: EnvironmentSpec) -> str:
    report = await bench.run(a_command("pwd", environment=environment))
    return report.stdout.data.decode().strip().removesuffix("workspace")


async def by_source(bench: Bench, program: TableProgram, way: EnvironmentSpec) -> str:
    spec = a_program(program.source, environment=way, files=program.files, env=program.env, stdin=program.stdin)
    return await observed(bench, spec)


async def by_file(bench: Bench, program: TableProgram, way: EnvironmentSpec) -> str:
    files = {**program.files, "main.py": program.source.encode()}
    spec = a_command("python3", "main.py", environment=way, files=files, env=program.env, stdin=program.stdin)
    return await observed(bench, spec)


async def observed(bench: Bench, spec: ExecSpec) -> str:
    report = await bench.run(spec)
    left = await bench.run(a_command("sh", "-c", LISTING, environment=spec.environment))
    return ADDRESS.sub("0x", "\n".join((*seen(report), f"left: {left.stdout.data.decode()}")))


def seen(report: ExecutionReport) -> Iterator[str]:
    yield f"{report.outcome} {report.reason} {report.exit_code} {report.signal}"
    yield f"stdout: {report.stdout.data.decode(errors='backslashreplace')}"
    yield f"stderr: {report.stderr.data.decode(errors='backslashreplace')}"
