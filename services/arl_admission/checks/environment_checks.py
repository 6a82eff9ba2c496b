"""Checks of later actions against a living environment."""

from dataclasses import dataclass

from arl_admission.checks.fleet import demand_impossible, required_capabilities, requirement_not_enforced
from arl_admission.normalise import demand_of
from arl_core.capacity.ledger import fits
from arl_core.domain.model import action_resources
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import DemandImpossible, FieldError, RequirementNotEnforced, Unprocessable, ValidationFailed

__all__ = ["SIZE_FIELDS", "ExistingEnvironment", "check_compatible"]

SIZE_FIELDS = ("memory_mib", "disk_mib", "pids")
"""Sizes that the first use of an environment sets."""


@dataclass(frozen=True, slots=True)
class ExistingEnvironment:
    """A living environment, as its first use created it."""

    template: str
    size: dict[str, int]
    capacity: dict[str, int]
    """Capacity of the environment's node."""
    enforced: frozenset[str]
    """Capabilities that the environment's node enforces."""


def check_compatible(action: SubmitActionRequest, existing: ExistingEnvironment | None) -> Unprocessable | None:
    """Return the error of an action that cannot run in its environment, or None."""
    if existing is None:
        return None
    if action.environment.template not in (None, existing.template):
        message = (
            f"the environment was created from template {existing.template!r}: use it, or end the trajectory first"
        )
        return ValidationFailed(message, errors=[FieldError(field="environment.template", message=message)])
    errors = [
        FieldError(
            field=f"demand.{name}", message=f"asks for {getattr(action.demand, name)}, but the environment has {has}"
        )
        for name, has in existing.size.items()
        if getattr(action.demand, name) > has
    ]
    if not errors:
        return _node_capacity_error(action, existing) or _enforcement_error(action, existing)
    detail = "; ".join(f"{error.field} {error.message}" for error in errors)
    return DemandImpossible(
        f"{detail}. The first action sets the size of an environment; end the trajectory to use another size",
        errors=errors,
    )


def _node_capacity_error(action: SubmitActionRequest, existing: ExistingEnvironment) -> DemandImpossible | None:
    """Return an error if the environment's node is too small. It does not move, so the action would never run."""
    needed = action_resources(demand_of(action))
    if fits(needed, existing.capacity):
        return None
    return demand_impossible(needed, [existing.capacity], subject="the node of the environment")


def _enforcement_error(action: SubmitActionRequest, existing: ExistingEnvironment) -> RequirementNotEnforced | None:
    """Return an error if the environment's node does not enforce a required capability."""
    if required_capabilities(action) <= existing.enforced:
        return None
    return requirement_not_enforced(action, "the node of the environment does not enforce")
