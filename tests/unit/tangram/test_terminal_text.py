"""Test that no control character of a program or a service reaches a terminal."""

import io
from pathlib import Path

import pytest
from rich.table import Table

import arl_tangram.cli
from arl_tangram.cli.terminal_text import TerminalConsole, neutralize, write_output, write_text

HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x1b[2Jc\x9bd\u202ee\x00\x08\rf"
SHOWN = "a\\x1b]52;c;ZXZpbA==\\x07b\\x1b[2Jc\\x9bd\\u202ee\\x00\\x08\\x0df"


class FakeTerminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_control_characters_become_their_escapes() -> None:
    assert neutralize(HOSTILE) == SHOWN
    assert neutralize("tab\tline\r\nnext\n\u00e9\U0001f600") == "tab\tline\nnext\n\u00e9\U0001f600"


def test_text_for_a_terminal_is_neutralized_and_for_a_file_unchanged() -> None:
    terminal, file = FakeTerminal(), io.StringIO()
    write_text(HOSTILE, terminal)
    write_text(HOSTILE, file)
    assert (terminal.getvalue(), file.getvalue()) == (SHOWN, HOSTILE)


def test_output_in_parts_is_decoded_across_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for byte in "\u00e9\x1b[31m\u009b1m".encode():
        write_output(bytes([byte]), "stderr")
    assert terminal.getvalue() == "\u00e9\\x1b[31m\\x9b1m"


@pytest.mark.parametrize("cell", ["message", "table"])
def test_console_neutralizes_contents_and_keeps_its_own_styles(cell: str) -> None:
    console = TerminalConsole(file=io.StringIO(), force_terminal=True, width=200, color_system="standard")
    table = Table()
    table.add_column("x", style="red")
    table.add_row(HOSTILE)
    console.print(table if cell == "table" else HOSTILE, markup=False, style="red")
    file = console.file
    assert isinstance(file, io.StringIO)
    written = file.getvalue()
    assert "\x1b[31m" in written
    assert not any(each in written for each in ("\x07", "\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x08"))


def test_only_shared_functions_write_to_standard_output() -> None:
    """Other writes may contain ids and keys, which the server makes, and JSON, which escapes control characters."""
    directory = Path(arl_tangram.cli.__file__).parent
    allowed = {"terminal_text.py", "output.py"}
    for path in directory.rglob("*.py"):
        for line in path.read_text().splitlines():
            if path.name not in allowed and ("sys.stdout.write(" in line or "sys.stdout.buffer" in line):
                assert (
                    any(known in line for known in (".id}", ".id}\\n", "created.key"))
                    or "b64decode" in line
                    or "flush" in line
                ), line
