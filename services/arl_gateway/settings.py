from pathlib import Path

from pydantic import Field

from arl_kit.settings import ServiceSettings

__all__ = ["GatewaySettings"]


class GatewaySettings(ServiceSettings):
    admission_url: str
    scheduler_url: str = Field(description="Asked why actions wait; nothing else depends on it")
    key_cache_s: float = Field(default=10.0, ge=0, description="How long a revoked key may still be taken")
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    max_archive_mib: int = Field(default=1024, ge=1, le=1 << 20, description="Of an environment's files, either way")
    rate_limit: int = Field(default=20_000, ge=1, description="Requests of one key in a window, at once if it likes")
    rate_limit_window_s: int = Field(default=10, ge=1, le=86400)
    body_timeout_s: float = Field(default=30, gt=0, description="For a body, besides a second for each 64 KiB of it")
    max_log_streams: int = Field(default=256, ge=0, description="Outputs that are followed at once; beyond, 503")
    max_log_streams_per_project: int = Field(default=128, ge=0, description="Of these for one project")
    max_inflight_score_batches: int = Field(
        default=2, ge=1, le=64, description="Score actions of one task and service at once that calls are put into"
    )
    max_pending_scores: int = Field(default=20_000, ge=1, description="Calls that wait for scores; beyond, 503")
    docs_dir: Path | None = Field(
        default=None,
        description="Directory of the built documentation, served at `/docs`. The default is `site` in the checkout.",
    )
    wait_poll_s: float = Field(default=1.0, gt=0, le=1.0)
