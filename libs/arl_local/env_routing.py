"""The `TANGRAM_*` variables that `tangram up` forwards to each process, and a check for unknown ones."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

__all__ = ["FORWARDED_SETTINGS", "forwarded_variables", "unknown_settings"]

_PREFIX = "TANGRAM_"
_SERVICE_SETTINGS = ("log_level", "pool_size", "cell")
_MANAGER_SETTINGS = ("beat_s", "node_ttl_s", "poll_busy_s", "poll_idle_s", "spool_mib")

FORWARDED_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "cpu-launcher": ("agent", "sandbox_pool_size", "network_private", "network_resolvers"),
    "admission": (
        *_SERVICE_SETTINGS,
        "cpu_form",
        "default_max_queued",
        "action_retention_s",
        "idempotency_key_retention_s",
        "forget_node_after_s",
    ),
    "scheduler": (
        *(
            *_SERVICE_SETTINGS,
            "policy",
            "pod_cores",
            "step_aware",
            "trace_slow_s",
            "trace_rounds",
            "leader_ttl_s",
            "node_ttl_s",
            "environment_loss_after_s",
        ),
        *("poll_busy_s", "poll_idle_s", "round_limit", "recovery_page_size"),
    ),
    "cpu": (
        *_SERVICE_SETTINGS,
        *_MANAGER_SETTINGS,
        "policy",
        "cpu_cores",
        "cpu_reserve",
        "memory_mib",
        "resources",
        "snapshots_mib",
        *("images_mib", "image_max_mib", "image_max_files", "image_pulls", "image_layer_pulls", "image_give_up_s"),
        "registries_file",
    ),
    "gpu": (
        *(
            *_SERVICE_SETTINGS,
            *_MANAGER_SETTINGS,
            "services",
            "models",
            "reward_functions",
            "engines",
            "slots",
            "devices",
            "device_mib",
        ),
        *("device_threads", "host_mib", "eviction", "model_swap_delay_s", "copy_mib_per_s", "counter_flush_s"),
        *("batch_tokens", "batch_s", "batch_limit_s", "max_inflight_tokens"),
    ),
    "api": (*_SERVICE_SETTINGS, *_MANAGER_SETTINGS, "endpoints", "grace_s"),
    "gateway": (
        *(*_SERVICE_SETTINGS, "rate_limit", "rate_limit_window_s", "max_body_mib", "max_archive_mib", "body_timeout_s"),
        *(
            "key_cache_s",
            "ports_domain",
            "e2b_public_ports",
            "max_log_streams",
            "max_log_streams_per_project",
            "max_inflight_score_batches",
            "max_pending_scores",
            "wait_poll_s",
            "docs_dir",
            "network_max",
            "network_policies",
        ),
    ),
}
"""Settings of each process, except those that `up` decides: addresses, secrets, directories, the driver."""

_OTHER_SETTINGS = (
    *("dir", "url", "api_key", "database_url", "templates_dir", "secrets_dir", "debug"),
    *("bench_peer", "engine_keys", "instead_of", "engines_dir", "failpoints"),
    *("host", "port", "driver", "node_name", "advertise_url", "admission_url", "scheduler_url", "service_token"),
    *("credential_id", "node_token_master", "join_token", "ends_at"),
    *("cells", "cell_weights", "fallback_cell", "cell_check_s", "cell_connections"),
    *("caller_keys", "metrics_token_hash", "launcher_socket", "launcher_dir", "snapshots_dir", "spool_dir"),
)
"""Settings that other programs read, or that only processes started by hand need."""


def forwarded_variables(process: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` that are settings of the process."""
    names = (_variable_name(setting) for setting in FORWARDED_SETTINGS.get(process, ()))
    return {name: environment[name] for name in names if name in environment}


def unknown_settings(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each `TANGRAM_*` variable that nothing reads: it is misspelt or of another version."""
    known = {
        _variable_name(setting) for settings in (*FORWARDED_SETTINGS.values(), _OTHER_SETTINGS) for setting in settings
    }
    return [
        _unknown_setting_message(name, known)
        for name in sorted(environment)
        if name.startswith(_PREFIX) and name not in known
    ]


def _variable_name(setting: str) -> str:
    return _PREFIX + setting.upper()


def _unknown_setting_message(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"{name} is no setting of anything here{f'; is it {near[0]}?' if near else ''}"
