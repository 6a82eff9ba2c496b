"""Capacities and capabilities of the registered nodes, for refusing actions that can never run."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_admission.normalise import CAPABILITY_OF, demand_of
from arl_admission.verifiers.payloads import is_verified
from arl_core.capacity.gangs import can_gang_fit
from arl_core.capacity.ledger import fits
from arl_core.domain.model import ENVIRONMENT_RESOURCES
from arl_core.images.pull_planning import PULLS_IMAGES
from arl_core.images.references import is_image_name
from arl_store.tx import Row
from arl_wire.actions.action import HOST_TEMPLATE, SubmitActionRequest
from arl_wire.errors import (
    DemandImpossible,
    EndpointNotFound,
    FieldError,
    RequirementNotEnforced,
    RewardServiceNotFound,
    TangramError,
    TemplateNotFound,
    ValidationFailed,
)
from arl_wire.internal.admission import AdmitItem
from arl_wire.reward_services.kinds import VERIFIERS, item_form_error

__all__ = [
    "FleetCatalog",
    "demand_impossible",
    "enforced_capabilities",
    "required_capabilities",
    "requirement_not_enforced",
]


@dataclass(slots=True)
class _NodeCapabilities:
    capacity: dict[str, int]
    enforced: frozenset[str]
    templates: set[str]

    def can_use(self, template: str) -> bool:
        """Return True if the node has the template, or can pull the image."""
        return template in self.templates or (is_image_name(template) and PULLS_IMAGES in self.enforced)


@dataclass(frozen=True, slots=True)
class EndpointRules:
    """Limits that all API nodes with an endpoint accept."""

    methods: frozenset[str]
    projects: frozenset[str] | None
    """Projects that may call the endpoint; None allows all."""

    @classmethod
    def from_row(cls, entry: Mapping[str, Any]) -> "EndpointRules":
        """Return the rules that one node publishes."""
        projects = entry.get("projects")
        return cls(frozenset(entry["methods"]), frozenset(projects) if projects is not None else None)

    def restricted_by(self, other: "EndpointRules") -> "EndpointRules":
        """Return the rules that satisfy both nodes."""
        both = [each for each in (self.projects, other.projects) if each is not None]
        return EndpointRules(self.methods & other.methods, frozenset.intersection(*both) if both else None)

    def allows(self, project: str) -> bool:
        """Return True if the project may call the endpoint."""
        return self.projects is None or project in self.projects


@dataclass(slots=True)
class FleetCatalog:
    """The resources of the registered nodes. While no node is registered, actions are accepted and wait for one."""

    nodes: list[_NodeCapabilities] = field(default_factory=list)
    services: dict[str, str] = field(default_factory=dict)
    """Kinds by name of the services that are registered, or that a node with devices has or had."""
    registered: frozenset[str] = frozenset()
    """Registered services, which may be removed."""
    endpoints: dict[str, EndpointRules] = field(default_factory=dict)
    """Rules by name of the endpoints that an API node has or had."""
    read_at: float = float("-inf")
    removals: int = 0
    """Number of removed services. Data that was read before a removal may still name the service."""

    def update(self, rows: Iterable[Row], registered: Mapping[str, str]) -> None:
        """Update the catalog.

        `registered` has kinds by service name; such a service may wait for a node with its files.
        """
        rows = list(rows)
        self.nodes = [
            _NodeCapabilities(
                json.loads(row.capacity),
                enforced_capabilities(row),
                {HOST_TEMPLATE, *(entry["name"] for entry in json.loads(row.templates))},
            )
            for row in rows
            if row.kind == "cpu"
        ]
        # The services and endpoints of a node that is gone: actions may wait until it returns.
        offers = [json.loads(row.services) for row in rows if row.kind == "gpu"]
        along = {e["name"]: e["kind"] for offer in offers for e in offer if not e.get("registered", False)}
        self.services = {**along, **registered}
        self.registered = frozenset(registered)
        self.endpoints = _rules_by_endpoint([row for row in rows if row.kind == "api"])

    def forget_service(self, service: str) -> None:
        """Remove a service from the catalog; a node may still report it."""
        self.removals += 1
        self.services.pop(service, None)

    def has_all(self, items: Sequence[AdmitItem]) -> bool:
        """Return True if all templates, services and endpoints of the items are known.

        Others may be newer than the catalog.
        """
        services, endpoints = {None, *self.services}, {None, *self.endpoints}
        return all(
            (action.environment.template is None or self._can_use(action.environment.template))
            and (action.service in services or is_verified(action))
            and action.endpoint in endpoints
            for action in (item.action for item in items)
        )

    def refusal(self, item: AdmitItem) -> TangramError | None:
        """Return the error of an action that no node can ever run, or None."""
        action = item.action
        if action.kind == "call":
            allowed = {name: rules for name, rules in self.endpoints.items() if rules.allows(item.project)}
            return _unknown_endpoint(action, allowed)
        if action.kind == "score" and (refused := self._item_form_error(action) or self._unknown_service(action)):
            return refused
        if action.kind == "score" and not is_verified(action):
            return None
        if not self.nodes:
            return None
        needed = demand_of(action)
        template = action.environment.template or HOST_TEMPLATE
        having = [node for node in self.nodes if node.can_use(template)]
        if not having:
            return _unknown_template(template, self.nodes)
        wide_enough = [node for node in having if fits(needed, node.capacity)]
        if not wide_enough:
            return demand_impossible(needed, [node.capacity for node in having])
        wanted = required_capabilities(action)
        if not any(wanted <= node.enforced for node in wide_enough):
            return requirement_not_enforced(action, "no node that is large enough enforces")
        return None

    def _can_use(self, template: str) -> bool:
        return any(node.can_use(template) for node in self.nodes)

    def _item_form_error(self, action: SubmitActionRequest) -> TangramError | None:
        name = action.service or ""
        kind = name if is_verified(action) else self.services.get(name)
        return item_form_error(kind, action.items) if kind is not None else None

    def _unknown_service(self, action: SubmitActionRequest) -> TangramError | None:
        return None if is_verified(action) else _unknown_service(action.service, self.services)

    def gang_refusal(self, actions: Sequence[SubmitActionRequest]) -> TangramError | None:
        """Return the error of a gang whose actions fit on nodes one by one, but never all at once, or None."""
        if not self.nodes:
            return None
        demands = [(demand_of(action), self._suitable_nodes(action)) for action in actions]
        if can_gang_fit(demands, {at: node.capacity for at, node in enumerate(self.nodes)}):
            return None
        message = f"the {len(actions)} actions would not fit on the nodes at the same time, even if all nodes were idle"
        return DemandImpossible(f"gang: {message}", errors=[FieldError(field="gang", message=message)])

    def _suitable_nodes(self, action: SubmitActionRequest) -> list[int]:
        template, wanted = action.environment.template or HOST_TEMPLATE, required_capabilities(action)
        return [at for at, node in enumerate(self.nodes) if node.can_use(template) and wanted <= node.enforced]


def enforced_capabilities(row: Row) -> frozenset[str]:
    """Return the enforced capabilities of a node from its row."""
    return frozenset(entry["name"] for entry in json.loads(row.enforced) if entry["level"] == "enforced")


def requirement_not_enforced(action: SubmitActionRequest, subject: str) -> RequirementNotEnforced:
    """Return an error. `subject` is the start of the message, before the required capabilities."""
    message = f"{subject} {', '.join(sorted(action.require))}"
    detail = f"{message}. `tangram doctor` shows what this machine enforces and why"
    return RequirementNotEnforced(detail, errors=[FieldError(field="require", message=message)])


def required_capabilities(action: SubmitActionRequest) -> set[str]:
    """Return the capabilities that the action requires of its node."""
    return {CAPABILITY_OF[name] for name in action.require}


def _unknown_template(name: str, nodes: Sequence[_NodeCapabilities]) -> TemplateNotFound:
    there = ", ".join(sorted(set[str]().union(*(node.templates for node in nodes))))
    if is_image_name(name):
        message = f"image {name} cannot be used, because no node pulls images; `tangram doctor` says why"
        return TemplateNotFound(message, errors=[FieldError(field="environment.template", message=message)])
    message = f"template {name!r} does not exist. Available: {there}. Import it with `tangram templates import`"
    return TemplateNotFound(message, errors=[FieldError(field="environment.template", message=message)])


def _unknown_service(name: str | None, known: Collection[str]) -> RewardServiceNotFound | None:
    if name in known:
        return None
    more = "" if known else ". `tangram doctor` explains how to get models"
    message = (
        f"reward service {name!r} does not exist. Available: {', '.join(sorted({*known, *VERIFIERS}))}. Register it"
        f" with `tangram reward-services register`{more}"
    )
    return RewardServiceNotFound(message, errors=[FieldError(field="service", message=message)])


def _rules_by_endpoint(brokers: Iterable[Row]) -> dict[str, EndpointRules]:
    """Return the rules of each endpoint, of brokers that may return if there is one, or else of earlier ones."""
    rules: dict[bool, dict[str, EndpointRules]] = {True: {}, False: {}}
    for row in brokers:
        known = rules[row.may_return]
        for entry in json.loads(row.endpoints):
            said, name = EndpointRules.from_row(entry), entry["name"]
            known[name] = known[name].restricted_by(said) if name in known else said
    return {**rules[False], **rules[True]}


def _unknown_endpoint(action: SubmitActionRequest, known: Mapping[str, EndpointRules]) -> TangramError | None:
    """Return the error of an unknown endpoint or of a method that the endpoint does not accept, or None."""
    if action.endpoint is None or action.request is None:
        return None
    if action.endpoint not in known:
        there = ", ".join(sorted(known)) or "none"
        message = (
            f"endpoint {action.endpoint!r} does not exist. Available: {there}. Brokers read their endpoints from"
            " TANGRAM_ENDPOINTS"
        )
        return EndpointNotFound(message, errors=[FieldError(field="endpoint", message=message)])
    methods = sorted(known[action.endpoint].methods)
    if action.request.method in methods:
        return None
    message = f"endpoint {action.endpoint} does not allow {action.request.method}. Allowed: {', '.join(methods)}"
    return ValidationFailed(message, errors=[FieldError(field="request.method", message=message)])


def demand_impossible(
    needed: Mapping[str, int], capacities: Sequence[Mapping[str, int]], *, subject: str = "the largest node"
) -> DemandImpossible:
    """Return the error of a demand above every capacity, with one field error for each resource."""
    largest = {resource: max(capacity.get(resource, 0) for capacity in capacities) for resource in needed}
    names = {"cpu_milli": "demand.cpu", "memory_mib": "demand.memory_mib", "disk_mib": "demand.disk_mib"}
    errors = [
        FieldError(
            field=names.get(resource, f"demand.resources.{resource}"),
            message=(
                f"asks for {_format_amount(resource, amount)}, but "
                f"{subject} has {_format_amount(resource, largest[resource])}"
            ),
        )
        for resource, amount in needed.items()
        if amount > largest[resource]
    ] or [
        FieldError(field="demand", message="fits on no single node: each resource exists, but not all on the same node")
    ]
    return DemandImpossible("; ".join(f"{error.field} {error.message}" for error in errors), errors=errors)


def _format_amount(resource: str, amount: int) -> str:
    if resource == "cpu_milli":
        return f"{amount / 1000:g} cores"
    return f"{amount} MiB" if resource in ENVIRONMENT_RESOURCES else str(amount)
