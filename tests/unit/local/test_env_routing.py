"""Settings of a user reach the process that uses them, and unknown settings are reported."""

import pytest
from pydantic_settings import BaseSettings

from arl_admission.settings import AdmissionSettings
from arl_api.settings import ApiSettings
from arl_cpu.settings import CpuSettings
from arl_gateway.settings import GatewaySettings
from arl_gpu.settings import GpuSettings
from arl_local.env_routing import FORWARDED_SETTINGS, forwarded_variables, unknown_settings
from arl_scheduler.settings import SchedulerSettings

DECIDED = {
    *(
        "host",
        "port",
        "database_url",
        "service_token",
        "caller_keys",
        "metrics_token_hash",
        "failpoints",
        "admission_url",
        "scheduler_url",
    ),
    *("credential_id", "node_token_master", "ends_at"),
    *("node_name", "advertise_url", "driver", "launcher_socket", "templates_dir", "snapshots_dir", "engines_dir"),
    "spool_dir",
}
"""Settings that `tangram up` decides, or that are only for tests."""


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("admission", AdmissionSettings),
        ("scheduler", SchedulerSettings),
        ("cpu", CpuSettings),
        ("gpu", GpuSettings),
        ("api", ApiSettings),
        ("gateway", GatewaySettings),
    ],
)
def test_every_service_setting_is_forwarded_unless_tangram_up_decides_it(
    service: str, settings: type[BaseSettings]
) -> None:
    assert set(FORWARDED_SETTINGS[service]) == settings.model_fields.keys() - DECIDED


def test_process_gets_no_settings_of_other_processes() -> None:
    given = {"TANGRAM_ENGINES": "{}", "TANGRAM_AGENT": "c", "TANGRAM_API_KEY": "tk_x", "TANGRAM_MEMORY_MIB": "512"}
    assert forwarded_variables("cpu", given) == {"TANGRAM_MEMORY_MIB": "512"}
    assert forwarded_variables("cpu-launcher", given) == {"TANGRAM_AGENT": "c"}
    assert forwarded_variables("gateway", given) == {}


def test_misspelt_setting_is_reported_with_a_suggestion() -> None:
    said = unknown_settings(["TANGRAM_POLICIY", "TANGRAM_POLICY", "TANGRAM_URL", "HOME"])
    assert said == ["TANGRAM_POLICIY is no setting of anything here; is it TANGRAM_POLICY?"]
