"""Options of vLLM's and Cohere's scoring requests that change a score and that no service supports."""

from typing import Any

from pydantic import AliasChoices, BaseModel, Field

from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["ScoringOptions", "refuse_unsupported_options"]

_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "truncate_prompt_tokens": (-1,),
    "truncation_side": (),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "add_special_tokens": (True,),
    "add_generation_prompt": (False,),
    "continue_final_message": (False,),
    "normalize": (False,),
    "instruction": ("",),
    "chat_template": (),
}
"""Values of each option, besides null, that leave the scores as they are."""


class ScoringOptions(BaseModel):
    """Options that are refused if they would change a score. An option that was ignored would give a wrong score."""

    use_activation: bool | None = Field(
        default=None,
        validation_alias=AliasChoices("use_activation", "activation", "softmax"),
        description="False to return raw logits. Absent: the setting of the service",
    )
    truncate_prompt_tokens: int | None = Field(
        default=None, description="-1 cuts a text at the model's length, which is the default. Others are refused"
    )
    truncation_side: str | None = Field(default=None, description="Not supported: a text is cut at its end")
    add_special_tokens: bool | None = Field(default=None, description="Not supported if false")
    add_generation_prompt: bool | None = Field(default=None, description="Not supported if true")
    continue_final_message: bool | None = Field(default=None, description="Not supported if true")
    normalize: bool | None = Field(default=None, description="Not supported if true")
    instruction: str | None = Field(default=None, description="Not supported")
    chat_template: str | None = Field(default=None, description="Not supported: the service's template is used")
    max_tokens_per_doc: int | None = Field(default=None, description="Not supported, except 0")
    max_tokens_per_query: int | None = Field(default=None, description="Not supported, except 0")


def refuse_unsupported_options(body: ScoringOptions) -> None:
    """Raise `ValidationFailed` with a field error for each option that would change the scores."""
    message = "is not supported, and would change the scores: remove the field"
    fields = [
        name
        for name, neutral in _NEUTRAL_VALUES.items()
        if (given := getattr(body, name)) is not None and given not in neutral
    ]
    if fields:
        raise ValidationFailed(
            f"{fields[0]} {message}", errors=[FieldError(field=field, message=message) for field in fields]
        )
