"""Test that programs which work in a plain container give the same results in a sandbox."""

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec, ExecSpec
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template
from arl_cpu.templates.template_store import TemplateStore
from support.probe import Probe
from support.probe_differences import documented_difference
from support.probe_suite import GATE_PROBES, PROBES_BY_MODULE
from support.sandbox import Bench, a_bench, a_command, an_environment, sandboxes

IMAGE = os.environ.get("TANGRAM_PROBES_IMAGE")
"""A directory or image with many tools that the probes also start from. Not set: only the host template is tested."""


DRIVERS = [each for each in sandboxes(both_agents=True) if each.values[0] != "landlock"]
"""The driver `landlock` is a fallback: it has no `/proc`, no network and no temporary directories of its own."""


@pytest.fixture(scope="module", params=DRIVERS)
async def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with a_bench(tmp_path_factory.mktemp("sandbox"), request.param) as bench:
        yield bench


@pytest.fixture(params=["host", pytest.param("image", marks=pytest.mark.slow)])
async def environment(request: pytest.FixtureRequest, sandbox: Bench) -> AsyncIterator[EnvironmentSpec]:
    """Provide a persistent environment with the limits that a program of an agent would ask for."""
    template = request.param
    if template == "image":
        if IMAGE is None:
            pytest.skip("TANGRAM_PROBES_IMAGE names no image")
        imported(sandbox, Path(IMAGE))
    environment = an_environment(template=template, memory_mib=2048, disk_mib=1024, pids=512)
    yield environment
    await sandbox.destroy(environment.id)


async def test_probes_of_the_gate_print_the_same_as_in_a_plain_container(
    sandbox: Bench, environment: EnvironmentSpec
) -> None:
    found = await differences(sandbox, environment, GATE_PROBES)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("module", PROBES_BY_MODULE)
async def test_all_probes_print_the_same_as_in_a_plain_container(
    sandbox: Bench, environment: EnvironmentSpec, module: str
) -> None:
    found = await differences(sandbox, environment, PROBES_BY_MODULE[module])
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("module", PROBES_BY_MODULE)
async def test_probes_started_as_source_print_the_same_as_files(
    sandbox: Bench, environment: EnvironmentSpec, module: str
) -> None:
    probes = [probe for probe in PROBES_BY_MODULE[module] if probe.source is not None]
    found = await differences(sandbox, environment, probes, as_source=True)
    assert not found, "\n".join(found)


def imported(sandbox: Bench, path: Path) -> None:
    """Import the image once per launcher."""
    assert sandbox.launcher is not None
    store = TemplateStore(sandbox.launcher.directory / "templates")
    if not store.record_path("image").exists():
        import_template(store, path, "image", budget=ImportBudget(max_bytes=8 << 30, max_members=500_000))


async def differences(
    sandbox: Bench, environment: EnvironmentSpec, probes: Sequence[Probe], *, as_source: bool = False
) -> list[str]:
    """Run the probes and describe each whose result is neither the expected nor the documented one."""
    missing = await missing_needs(sandbox, environment, probes)
    here = (None, os.uname().machine)
    able = [each for each in probes if each.machine in here and not missing & {*each.needs, *each.imports}]
    compared = [await difference_of(sandbox, environment, probe, as_source=as_source) for probe in able]
    return [found for found in compared if found is not None]


async def missing_needs(sandbox: Bench, environment: EnvironmentSpec, probes: Sequence[Probe]) -> set[str]:
    """Return commands and modules that the probes need and that the template lacks."""
    needs = sorted({need for probe in probes for need in probe.needs})
    imports = sorted({name for probe in probes for name in probe.imports})
    text = f"for n in {' '.join(needs)}; do command -v $n >/dev/null || echo $n; done"
    text += "".join(f"; python3 -c 'import {name}' 2>/dev/null || echo {name}" for name in imports)
    report = await sandbox.run(a_command("sh", "-c", text, environment=environment))
    return set(report.stdout.data.decode().split())


async def difference_of(sandbox: Bench, environment: EnvironmentSpec, probe: Probe, *, as_source: bool) -> str | None:
    report = await sandbox.run(attempt_of(probe, environment, as_source=as_source))
    await sandbox.run(a_command("rm", "-rf", f"probes/{probe.name}", environment=environment))
    code = report.exit_code if report.exit_code is not None else 128 + (report.signal or 0)
    found = (report.stdout.data.decode(errors="replace"), code)
    documented = documented_difference(probe, environment.template, sandbox.enforcement)
    allowed = [(probe.output, probe.exit_code), *([(documented.output, documented.exit_code)] if documented else [])]
    if found in allowed or (documented is not None and documented.output is None):
        return None
    error = report.stderr.data.decode(errors="replace")[-400:]
    return f"{probe.name}: expected {allowed[-1]}, got {found}, {report.outcome} {report.reason}, stderr {error!r}"


def attempt_of(probe: Probe, environment: EnvironmentSpec, *, as_source: bool) -> ExecSpec:
    """Return the attempt that runs a probe in a directory of its own."""
    directory = f"probes/{probe.name}"
    attempt = a_command(
        *probe.argv,
        environment=environment,
        env=probe.env,
        stdin=probe.stdin.encode(),
        timeout_s=60.0,
        cwd=directory,
        files={f"{directory}/{name}": text.encode() for name, text in probe.files.items()},
    )
    if not as_source:
        return attempt
    empty = {f"{directory}/empty": b""}
    return replace(attempt, argv=None, source=probe.source, files=empty)
