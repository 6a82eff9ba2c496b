"""How a program is compiled and run, by the names that SandboxFusion has for languages.

The commands are those of `sandbox/runners` in bytedance/SandboxFusion; whether a node's template has them is another
matter. What needs files of SandboxFusion's own image beside the program is not here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LANGUAGES", "Language"]


@dataclass(frozen=True, slots=True)
class Language:
    """`file` has the program. Without `run` it is run by Python itself."""

    file: str
    run: Sequence[str] = ()
    compile: Sequence[str] = ()
    begins_with: str = ""
    """What a program begins with that lacks it."""


_NODE = Language("main.js", ("node", "main.js"))
_TYPESCRIPT = Language("main.ts", ("tsx", "main.ts"))

LANGUAGES: Mapping[str, Language] = {
    "python": Language("main.py"),
    "pytest": Language("test_main.py", ("pytest", "test_main.py")),
    "bash": Language("main.sh", ("/bin/bash", "main.sh")),
    "nodejs": _NODE,
    "js": _NODE,
    "typescript": _TYPESCRIPT,
    "ts": _TYPESCRIPT,
    "php": Language("main.php", ("php", "-f", "main.php"), begins_with="<?php\n"),
    "perl": Language("main.pl", ("perl", "main.pl")),
    "ruby": Language("main.rb", ("ruby", "main.rb")),
    "lua": Language("main.lua", ("lua", "main.lua")),
    "R": Language("main.R", ("Rscript", "main.R")),
    "julia": Language("main.jl", ("julia", "main.jl")),
    "racket": Language("main.rkt", ("racket", "main.rkt")),
    "kotlin_script": Language("main.kts", ("kotlin", "main.kts")),
    "go_test": Language("main_test.go", ("go", "test", "main_test.go")),
    "cpp": Language("main.cpp", ("./main",), ("g++", "-std=c++17", "main.cpp", "-o", "main", "-pthread")),
    "go": Language("main.go", ("./main",), ("go", "build", "-o", "main", "main.go")),
    "rust": Language("main.rs", ("./main",), ("rustc", "main.rs", "-o", "main")),
    "java": Language("Main.java", ("java", "-cp", ".", "-ea", "Main"), ("javac", "-cp", ".", "Main.java")),
    "swift": Language("main.swift", ("./main",), ("swiftc", "main.swift", "-o", "main")),
    "D_ut": Language("main.d", ("./main",), ("dmd", "main.d", "-unittest", "-of=main")),
}
