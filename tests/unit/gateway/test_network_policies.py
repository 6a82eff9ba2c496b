"""Test the networks that clients may give, and E2B's rules."""

import pytest
from pydantic import ValidationError

from arl_gateway.compat.e2b.errors import GuestCallError
from arl_gateway.compat.e2b.models import CreateSandboxRequest, SandboxNetwork, network_setting
from arl_gateway.environments.network_policies import PACKAGE_MIRRORS, NetworkPolicies
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.environments.network import NetworkAllowList
from arl_wire.errors import ValidationFailed

HOSTS = NetworkAllowList(allow=["a.example"])


def test_named_policy_becomes_its_hosts() -> None:
    policies = NetworkPolicies("allow", {"mine": HOSTS})
    assert policies.resolve("mine") == HOSTS
    mirrors = policies.resolve(PACKAGE_MIRRORS)
    assert isinstance(mirrors, NetworkAllowList)
    assert "pypi.org" in mirrors.allow


def test_policy_of_the_operator_replaces_the_built_in_one() -> None:
    assert NetworkPolicies("allow", {PACKAGE_MIRRORS: HOSTS}).resolve(PACKAGE_MIRRORS) == HOSTS


def test_unknown_policy_is_refused_with_the_available_ones() -> None:
    with pytest.raises(ValidationFailed, match="Available: none, open, package-mirrors") as refused:
        NetworkPolicies().resolve("mirors")
    assert refused.value.errors[0].field == "network"


@pytest.mark.parametrize(
    ("limit", "accepted"), [("none", {"none"}), ("allow", {"none", "hosts"}), ("open", {"none", "hosts", "open"})]
)
def test_network_above_the_limit_is_refused(limit: str, accepted: set[str]) -> None:
    policies = NetworkPolicies(limit)  # type: ignore[arg-type]
    for name, setting in (("none", "none"), ("hosts", HOSTS), ("open", "open")):
        if name in accepted:
            assert policies.resolve(setting) == setting  # type: ignore[arg-type]
        else:
            with pytest.raises(ValidationFailed, match="TANGRAM_NETWORK_MAX"):
                policies.resolve(setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "allow",
    [[f"{number}.0.0.0/8" for number in range(1, 100)], [f"{'a' * 60}.{'b' * 60}{n}.example" for n in range(200)]],
)
def test_list_that_would_be_an_open_network_is_refused(allow: list[str]) -> None:
    with pytest.raises(ValidationError, match="in all"):
        NetworkAllowList(allow=allow)


def test_network_of_an_action_is_resolved() -> None:
    action = SubmitActionRequest(task="t", argv=["true"], network=PACKAGE_MIRRORS)
    assert isinstance(NetworkPolicies().resolve_action(action).network, NetworkAllowList)
    with pytest.raises(ValidationFailed):
        NetworkPolicies().resolve_action(action.model_copy(update={"network": "open"}))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "open"),
        ({"allow_internet_access": True}, "open"),
        ({"allow_internet_access": False}, "none"),
        ({"network": {"denyOut": ["0.0.0.0/0"]}}, "none"),
        ({"network": {"allowOut": ["0.0.0.0/0"]}}, "open"),
        ({"network": {"allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"]}}, HOSTS),
        ({"network": {"allowOut": ["a.example"]}, "allow_internet_access": False}, HOSTS),
    ],
)
def test_rules_of_e2b_become_a_network(body: dict[str, object], expected: object) -> None:
    wanted = CreateSandboxRequest.model_validate({"templateID": "base", **body})
    assert network_setting(wanted.network, has_internet=wanted.has_internet, widest="open") == expected


def test_rules_of_e2b_that_cannot_be_applied_are_refused() -> None:
    for network in (SandboxNetwork(denied=["8.8.8.8"]), SandboxNetwork(rules={"a.example": []})):
        with pytest.raises(GuestCallError, match="not supported"):
            network_setting(network, has_internet=None, widest="open")
    with pytest.raises(ValidationFailed, match=r"network\.allowOut"):
        network_setting(SandboxNetwork(allowed=["*"]), has_internet=None, widest="open")
