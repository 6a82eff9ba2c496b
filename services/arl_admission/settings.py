from pydantic import Field

from arl_kit.settings import ServiceSettings

__all__ = ["AdmissionSettings"]


class AdmissionSettings(ServiceSettings):
    scheduler_url: str = Field(description="Where to hint new rows; the scheduler's poll is the truth")
    key_retention_s: int = Field(default=24 * 3600, ge=60, description="How long an Idempotency-Key is remembered")
