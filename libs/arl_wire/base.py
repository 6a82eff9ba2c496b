from pydantic import BaseModel, ConfigDict

__all__ = ["StrictModel"]


class StrictModel(BaseModel):
    """What clients send: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
