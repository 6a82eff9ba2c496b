"""The generated reference pages name everything that the code has."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from arl_kit.telemetry.otel import OtelSettings
from arl_local.provision import ProvisionSettings

ROOT = Path(__file__).resolve().parents[3]
HOOKS = ROOT / "docs" / "hooks"


@pytest.fixture(scope="module", autouse=True)
def hooks() -> object:
    """Import the hook's modules as MkDocs does."""
    sys.path.insert(0, str(HOOKS))
    yield
    sys.path.remove(str(HOOKS))


def module(name: str) -> ModuleType:
    return __import__(f"reference_{name}")


def test_cli_page_has_every_command() -> None:
    cli = module("cli")
    page = cli.render()
    names = [name for name, _, _ in cli.commands()]
    assert {"tangram submit", "tangram queues quota", "tangram bench rounds", "tangram demo"} <= set(names)
    assert [name for name in names if f"# {name} {{ #{name.replace(' ', '-')} }}" not in page] == []


def test_cli_page_has_every_option_of_a_command() -> None:
    page = module("cli").render()
    section = page.partition("{ #tangram-submit }")[2].partition("\n## ")[0]
    assert all(f"`{option}" in section for option in ("--cpu", "--memory-mib", "--dir", "--output"))


def test_settings_page_has_every_variable() -> None:
    settings = module("settings")
    page = settings.render()
    names = {name for model in settings.models().values() for name, _ in settings.variables(model)}
    assert len(names) > 60
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_every_setting_has_a_description() -> None:
    settings = module("settings")
    models = [*settings.models().values(), OtelSettings, ProvisionSettings]
    assert [name for model in models for name, field in settings.variables(model) if not field.description] == []


def test_settings_page_has_no_value_of_this_machine() -> None:
    page = module("settings").render()
    assert str(Path.home()) not in page
    assert str(ROOT) not in page


def test_metrics_page_has_every_metric() -> None:
    metrics = module("metrics")
    page = metrics.render()
    names = {name for service in metrics.TITLES for name in metrics.metrics_of(service)}
    assert {"tangram_queue_depth", "tangram_gpu_batches_total", "tangram_spans_lost_total"} <= names
    assert sorted(name for name in names if f"| `{name}` |" not in page) == []


def test_errors_page_has_every_code() -> None:
    errors = module("errors")
    page = errors.render()
    codes = {cls.code for cls in errors.error_classes()} - {"error"}
    assert {"queue_full", "template_not_found", "internal"} <= codes
    assert sorted(code for code in codes if f"| `{code}` |" not in page) == []


def test_outcomes_page_has_every_state_outcome_and_reason() -> None:
    from arl_core.domain.states import ActionOutcome, ActionState, WaitReason

    page = module("outcomes").render()
    assert [
        value for enum in (ActionState, ActionOutcome, WaitReason) for value in enum if f"| `{value}`" not in page
    ] == []


def test_http_page_has_every_operation_and_schema() -> None:
    http = module("http")
    page, openapi = http.render(), http.document()
    operations = list(http.operations(openapi))
    assert len(operations) > 70
    assert [path for method, path, _ in operations if f"\n{method.upper()} {path}\n" not in page] == []
    assert [name for name in openapi["components"]["schemas"] if f"### {name} " not in page] == []


def test_http_page_has_a_command_for_every_operation() -> None:
    http = module("http")
    assert http.render().count("```bash\ncurl") == len(list(http.operations(http.document())))


def test_python_page_has_every_public_name() -> None:
    import arl_tangram

    page = module("python").render()
    assert [name for name in arl_tangram.__all__ if f"::: arl_tangram.{name}\n" not in page] == []
