"""Logits and probabilities of a classifier: clients name what they want, services what they give."""

import math
from collections.abc import Sequence

from arl_gateway.offered import ServiceEntry
from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["apply_activation"]

ACTIVATED_KINDS = frozenset({"classifier"})
"""Kinds that give probabilities where nothing else is said of a service."""


def apply_activation(values: Sequence[float], service: ServiceEntry, activation: bool | None) -> list[float]:
    """As the service gives them where `activation` is None. Raises `ValidationFailed` for logits that are not known.

    A sigmoid of one label, a softmax of several, as vLLM has it.
    """
    said = service.options.get("activation")
    is_activated = bool(said) if said is not None else service.kind in ACTIVATED_KINDS
    if activation is None or activation == is_activated:
        return list(values)
    if activation:
        return _probabilities(values)
    if len(values) == 1 and 0 < values[0] < 1:
        return [math.log(values[0]) - math.log1p(-values[0])]
    message = f"{service.name} gives probabilities, and its logits are not known; register it without activation"
    raise ValidationFailed(message, errors=[FieldError(field="use_activation", message=message)])


def _probabilities(values: Sequence[float]) -> list[float]:
    if len(values) == 1:
        return [1 / (1 + math.exp(-values[0]))] if values[0] > 0 else [1 - 1 / (1 + math.exp(values[0]))]
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    return [power / sum(powers) for power in powers]
