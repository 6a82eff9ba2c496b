"""Verifiable rewards: a score by a verifier is a program in a sandbox. It needs a core and no device."""

import json
import zlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.reward_services.kinds import VERIFIERS

__all__ = ["is_verified", "verifier_payload"]

TIMEOUT_FRACTION = 0.9
"""Fraction of an action's time for the interpreter's start and the items; the rest is for reporting."""

_PROGRAMS = "arl_admission.verifiers.programs"
_MATH_MODULES = (
    *("answer_kinds", "answers", "comparison", "expressions", "final_answers", "grading", "notation", "quantities"),
    *("relations", "symbol_names", "units", "values"),
)
"""Modules that only the verifier `math` imports. They travel with its request."""


def is_verified(action: SubmitActionRequest) -> bool:
    """Return True if the action is scored by a verifier."""
    return action.service in VERIFIERS


def verifier_payload(action: SubmitActionRequest) -> dict[str, Any]:
    """Return the payload of a program, as for an exec. Its standard output has the entries."""
    request = {
        "kind": action.service,
        "items": [item.model_dump(exclude_none=True) for item in action.items],
        "within_s": TIMEOUT_FRACTION * action.timeout_s,
    }
    if action.service == "math":
        request["modules"] = _packed_modules()
    return {
        "service": action.service,
        "argv": None,
        "source": _program_source(),
        "stdin": b64encode(json.dumps(request).encode()).decode(),
        "env": {},
        "cwd": None,
        "files": {},
        "fetch": [],
    }


@cache
def _program_source() -> str:
    return _read_program("verify")


@cache
def _packed_modules() -> str:
    """Return the source of each module by its name, as JSON, compressed to a third, in Base64."""
    sources = {f"{_PROGRAMS}.{name}": _read_program(name) for name in _MATH_MODULES}
    return b64encode(zlib.compress(json.dumps(sources).encode(), level=9)).decode()


def _read_program(name: str) -> str:
    return files(_PROGRAMS).joinpath(f"{name}.py").read_text()
