"""Judges: the prompt, and the conversion of an answer to a score."""

import re
from collections.abc import Iterator
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from arl_wire.validation import StrictModel, validate_no_nul, validate_small_json

__all__ = ["TEMPLATE_FIELDS", "JudgeOptions", "parse_template"]

TEMPLATE_FIELDS = {"prompt": "prompt", "response": "text", "reference": "reference"}
"""Names allowed in a template, and their item fields."""
REPEAT_OPERATORS = ("MAX_REPEAT", "MIN_REPEAT")


def parse_template(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield literal text and the name after it, or None. Raises ValueError for unknown names."""
    for literal, name, spec, conversion in Formatter().parse(template):
        if name is not None and (name not in TEMPLATE_FIELDS or spec or conversion):
            raise ValueError(
                f"{{{name}}} is unknown. Allowed: {', '.join(f'{{{each}}}' for each in TEMPLATE_FIELDS)}. Write a"
                " literal brace twice"
            )
        yield literal, name


def _check_template(template: str) -> str:
    if "response" not in [name for _, name in parse_template(template)]:
        raise ValueError("must contain {response}, the text to judge")
    return template


def _check_pattern(pattern: str) -> str:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError(f"has {compiled.groups} groups; it must have exactly one, which captures the verdict")
    if _has_nested_repeat(pattern):
        raise ValueError("has nested unbounded repetitions, which can take forever on some texts")
    return pattern


def _has_nested_repeat(pattern: str) -> bool:
    """Return True for nested repeats such as `(a+)*`, which backtrack exponentially on a mismatch."""
    from re import _constants, _parser  # type: ignore[attr-defined]  # no public API exposes the structure of a pattern

    def has(node: Any, *, inside: bool) -> bool:
        """Return True if the parsed pattern has an unbounded repetition within another one."""
        if isinstance(node, tuple) and node and str(node[0]) in REPEAT_OPERATORS:
            _, (_, most, repeated) = node
            unbounded = most == _constants.MAXREPEAT
            return (inside and unbounded) or has(repeated, inside=inside or unbounded)
        if isinstance(node, tuple | list | _parser.SubPattern):
            return any(has(each, inside=inside) for each in node)
        return False

    return has(_parser.parse(pattern), inside=False)


def _check_distinct_words(words: Any) -> Any:
    if not isinstance(words, dict):
        return words
    seen: dict[str, str] = {}
    for word in (each for each in words if isinstance(each, str)):
        if (same := seen.setdefault(word.strip().lower(), word)) is not word:
            raise ValueError(f"{same!r} and {word!r} are the same verdict: case and surrounding spaces are ignored")
    return words


_TemplateText = Annotated[str, StringConstraints(min_length=1, max_length=32 << 10), AfterValidator(validate_no_nul)]
_VerdictWord = Annotated[str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True, to_lower=True)]
_FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class JudgeOptions(StrictModel):
    """The options of a judge: prompt template, number of samples, and the value of each verdict."""

    prompt: Annotated[_TemplateText, AfterValidator(_check_template)] = Field(
        description="Template of the prompt. `{prompt}`, `{response}` and `{reference}` are replaced with the item's"
        " `prompt`, `text` and `reference`. Write a literal brace twice"
    )
    system: _TemplateText | None = Field(default=None, description="System message before the prompt")
    samples: int = Field(default=1, ge=1, le=64, description="Number of answers per item")
    temperature: _FiniteFloat | None = Field(
        default=None, ge=0, le=2, description="Sampling temperature. Absent: the default of the engine"
    )
    top_p: _FiniteFloat | None = Field(default=None, gt=0, le=1)
    max_tokens: int = Field(default=2048, ge=1, le=128 << 10, description="Maximum tokens of one answer")
    extra: Annotated[dict[str, Any], AfterValidator(validate_small_json)] = Field(
        default_factory=dict, description="Further fields of the requests to the engine, such as `chat_template_kwargs`"
    )
    pattern: Annotated[_TemplateText, AfterValidator(_check_pattern)] | None = Field(
        default=None, description="Regular expression with one group, which captures the verdict. The last match counts"
    )
    json_field: _TemplateText | None = Field(
        default=None, description="Field of the last JSON object in the answer that has the verdict; replaces `pattern`"
    )
    words: Annotated[dict[_VerdictWord, _FiniteFloat] | None, BeforeValidator(_check_distinct_words)] = Field(
        default=None, min_length=1, max_length=256, description="Score of each verdict; case is ignored"
    )
    minimum: _FiniteFloat | None = Field(
        default=None, description="Lower bound of a numeric verdict; `minimum` and `maximum` replace `words`"
    )
    maximum: _FiniteFloat | None = Field(
        default=None, description="Upper bound of a numeric verdict, which then is the score"
    )
    aggregate: Literal["mean", "majority", "min", "max"] = Field(
        default="mean",
        description="Aggregation of the scores of the verdicts. If several majorities tie, the score is their mean",
    )
    min_verdicts: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Minimum number of readable answers. An item with fewer has an error instead of a score",
    )

    @model_validator(mode="after")
    def _check_verdict_source(self) -> "JudgeOptions":
        if (self.pattern is None) == (self.json_field is None):
            raise ValueError("give exactly one of pattern and json_field")
        bounds = [self.minimum, self.maximum].count(None)
        if bounds == 1 or (self.words is None) == (bounds == 2):
            raise ValueError("give either words, or minimum and maximum")
        if self.minimum is not None and self.maximum is not None and self.minimum >= self.maximum:
            raise ValueError("minimum must be below maximum")
        if self.min_verdicts > self.samples:
            raise ValueError(
                f"min_verdicts is {self.min_verdicts}; it must not exceed samples, which is {self.samples}"
            )
        return self
