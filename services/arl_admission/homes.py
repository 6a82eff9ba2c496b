"""Living environments: what those who come later may ask of one."""

from dataclasses import dataclass

from arl_admission.fleet import impossible, lacking, wanted_of
from arl_admission.normalise import demand_of
from arl_core.ledger import fits
from arl_core.model import action_part
from arl_wire.actions import SubmitAction
from arl_wire.errors import DemandImpossible, FieldError, RequirementNotEnforced, Unprocessable, ValidationFailed

__all__ = ["SIZE", "Home", "unlike"]

SIZE = ("memory_mib", "disk_mib", "pids")
"""What the first use of an environment sets."""


@dataclass(frozen=True, slots=True)
class Home:
    """A living environment, as its first use made it."""

    template: str
    size: dict[str, int]
    capacity: dict[str, int]
    """Of the node where it lives."""
    enforced: frozenset[str]
    """On that node."""


def unlike(action: SubmitAction, home: Home | None) -> Unprocessable | None:
    """Why an action can't run in the environment that it names."""
    if home is None:
        return None
    if action.environment.template not in (None, home.template):
        message = f"the environment was made from {home.template!r}; end the trajectory for another"
        return ValidationFailed(message, errors=[FieldError(field="environment.template", message=message)])
    errors = [
        FieldError(
            field=f"demand.{name}", message=f"asks for {getattr(action.demand, name)}, the environment has {has}"
        )
        for name, has in home.size.items()
        if getattr(action.demand, name) > has
    ]
    if not errors:
        return _beyond_node(action, home) or _not_enforced(action, home)
    detail = "; ".join(f"{error.field} {error.message}" for error in errors)
    return DemandImpossible(f"{detail}; its first action set its size, end the trajectory for another", errors=errors)


def _beyond_node(action: SubmitAction, home: Home) -> DemandImpossible | None:
    """Its environment stays where it is, and so it would wait for ever."""
    needed = action_part(demand_of(action))
    if fits(needed, home.capacity):
        return None
    return impossible(needed, [home.capacity], who="the node where its environment lives")


def _not_enforced(action: SubmitAction, home: Home) -> RequirementNotEnforced | None:
    """Likewise."""
    if wanted_of(action) <= home.enforced:
        return None
    return lacking(action, "the node where its environment lives does not enforce")
