"""Test that programs which work in a plain container give the same results in a sandbox."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from arl_cpu.contract.executor import EnvironmentSpec
from arl_cpu.templates.byte_streams import ImportBudget
from arl_cpu.templates.importer import import_template
from arl_cpu.templates.template_store import TemplateStore
from support.probe_differences import DOCUMENTED
from support.probe_suite import PROBES_BY_MODULE
from support.probes.probe import Probe
from support.sandbox import Bench, a_command, an_environment

IMAGE = os.environ.get("TANGRAM_PROBES_IMAGE")
"""A directory or image with many tools that the probes also start from. Not set: only the host template is tested."""


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


@pytest.mark.parametrize("module", PROBES_BY_MODULE)
async def test_quick_probes_print_the_same_as_in_a_plain_container(
    sandbox: Bench, environment: EnvironmentSpec, module: str
) -> None:
    probes = [probe for probe in PROBES_BY_MODULE[module] if probe.is_quick]
    found = await differences(sandbox, environment, probes)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("module", PROBES_BY_MODULE)
async def test_slow_probes_print_the_same_as_in_a_plain_container(
    sandbox: Bench, environment: EnvironmentSpec, module: str
) -> None:
    probes = [probe for probe in PROBES_BY_MODULE[module] if not probe.is_quick]
    found = await differences(sandbox, environment, probes)
    assert not found, "\n".join(found)


def imported(sandbox: Bench, path: Path) -> None:
    """Import the image once per launcher."""
    assert sandbox.launcher is not None
    store = TemplateStore(sandbox.launcher.directory / "templates")
    if not store.record_path("image").exists():
        import_template(store, path, "image", budget=ImportBudget(max_bytes=8 << 30, max_members=500_000))


async def differences(sandbox: Bench, environment: EnvironmentSpec, probes: Sequence[Probe]) -> list[str]:
    """Run the probes and describe each whose result is neither the expected nor the documented one."""
    missing = await missing_needs(sandbox, environment, probes)
    able = [probe for probe in probes if not missing & {*probe.needs, *probe.imports}]
    compared = [await difference_of(sandbox, environment, probe) for probe in able]
    return [found for found in compared if found is not None]


async def missing_needs(sandbox: Bench, environment: EnvironmentSpec, probes: Sequence[Probe]) -> set[str]:
    """Return commands and modules that the probes need and that the template lacks."""
    needs = sorted({need for probe in probes for need in probe.needs})
    imports = sorted({name for probe in probes for name in probe.imports})
    text = f"for n in {' '.join(needs)}; do command -v $n >/dev/null || echo $n; done"
    text += "".join(f"; python3 -c 'import {name}' 2>/dev/null || echo {name}" for name in imports)
    report = await sandbox.run(a_command("sh", "-c", text, environment=environment))
    return set(report.stdout.data.decode().split())


async def difference_of(sandbox: Bench, environment: EnvironmentSpec, probe: Probe) -> str | None:
    directory = f"probes/{probe.name}"
    files = {f"{directory}/{name}": text.encode() for name, text in probe.files.items()}
    changes = {"environment": environment, "env": probe.env, "stdin": probe.stdin.encode(), "timeout_s": 60.0}
    report = await sandbox.run(a_command(*probe.argv, files=files, cwd=directory, **changes))
    code = report.exit_code if report.exit_code is not None else 128 + (report.signal or 0)
    found = (report.stdout.data.decode(errors="replace"), code)
    documented = DOCUMENTED.get(probe.name)
    expected = (documented.output, documented.exit_code) if documented else (probe.output, probe.exit_code)
    if found == expected:
        return None
    error = report.stderr.data.decode(errors="replace")[-400:]
    return f"{probe.name}: expected {expected}, got {found}, {report.outcome} {report.reason}, stderr {error!r}"
