"""Compile and run commands, by SandboxFusion's names of languages.

The commands are those of `sandbox/runners` in bytedance/SandboxFusion. A node's template may lack them. Languages that
need further files of SandboxFusion's own image are omitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["LANGUAGES", "LanguageSpec"]


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """The commands of a language. The program is in `file`. If `run` is empty, Python itself runs it."""

    file: str
    run: Sequence[str] = ()
    compile: Sequence[str] = ()
    required_prefix: str = ""
    """Text that a program must begin with; it is added if missing."""


_JAVA_HEAP = ("-XX:MaxRAMPercentage=75",)
"""Java takes a quarter of the memory limit by default. SandboxFusion's programs have no limit that Java could see."""
_NODE = LanguageSpec("main.js", ("node", "main.js"))
_TYPESCRIPT = LanguageSpec("main.ts", ("tsx", "main.ts"))

LANGUAGES: Mapping[str, LanguageSpec] = {
    "python": LanguageSpec("main.py"),
    "pytest": LanguageSpec("test_main.py", ("pytest", "test_main.py")),
    "bash": LanguageSpec("main.sh", ("/bin/bash", "main.sh")),
    "nodejs": _NODE,
    "js": _NODE,
    "typescript": _TYPESCRIPT,
    "ts": _TYPESCRIPT,
    "php": LanguageSpec("main.php", ("php", "-f", "main.php"), required_prefix="<?php\n"),
    "perl": LanguageSpec("main.pl", ("perl", "main.pl")),
    "ruby": LanguageSpec("main.rb", ("ruby", "main.rb")),
    "lua": LanguageSpec("main.lua", ("lua", "main.lua")),
    "R": LanguageSpec("main.R", ("Rscript", "main.R")),
    "julia": LanguageSpec("main.jl", ("julia", "main.jl")),
    "racket": LanguageSpec("main.rkt", ("racket", "main.rkt")),
    "kotlin_script": LanguageSpec("main.kts", ("kotlin", "main.kts")),
    "go_test": LanguageSpec("main_test.go", ("go", "test", "main_test.go")),
    "cpp": LanguageSpec("main.cpp", ("./main",), ("g++", "-std=c++17", "main.cpp", "-o", "main", "-pthread")),
    "go": LanguageSpec("main.go", ("./main",), ("go", "build", "-o", "main", "main.go")),
    "rust": LanguageSpec("main.rs", ("./main",), ("rustc", "main.rs", "-o", "main")),
    "java": LanguageSpec(
        "Main.java", ("java", *_JAVA_HEAP, "-cp", ".", "-ea", "Main"), ("javac", "-cp", ".", "Main.java")
    ),
    "swift": LanguageSpec("main.swift", ("./main",), ("swiftc", "main.swift", "-o", "main")),
    "D_ut": LanguageSpec("main.d", ("./main",), ("dmd", "main.d", "-unittest", "-of=main")),
}
