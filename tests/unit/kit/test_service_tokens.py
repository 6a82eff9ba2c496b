"""Test that a token between services is valid only for its caller, its audience and a short time."""

from dataclasses import dataclass

import pytest

from arl_kit.service_tokens import (
    CLOCK_TOLERANCE_S,
    TOKEN_LIFETIME_S,
    TokenIssuer,
    TokenVerifier,
    node_audience,
    pairwise_key,
)

SECRET, OTHER_SECRET = "g" * 32, "s" * 32
NODE, OTHER_NODE = node_audience("a"), node_audience("b")


@dataclass
class SetClock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def a_verifier(audience: str = NODE, clock: SetClock | None = None) -> TokenVerifier:
    callers = {"gateway": SECRET, "scheduler": OTHER_SECRET}
    keys = {caller: pairwise_key(secret, audience) for caller, secret in callers.items()}
    return TokenVerifier(audience, keys, clock=clock or SetClock())


def a_token(audience: str = NODE, *, caller: str = "gateway", secret: str = SECRET, now: float = 1_000_000.0) -> str:
    return TokenIssuer(caller, secret, clock=SetClock(now)).token_for(audience)


def test_token_names_its_caller_to_its_audience() -> None:
    assert a_verifier().caller_of(a_token()) == "gateway"
    assert a_verifier().caller_of(a_token(caller="scheduler", secret=OTHER_SECRET)) == "scheduler"


@pytest.mark.parametrize("audience", ["admission", "scheduler", OTHER_NODE, "a", "node/", ""])
def test_token_of_a_node_is_refused_by_every_other_audience(audience: str) -> None:
    assert a_verifier(audience).caller_of(a_token()) is None


def test_keys_of_a_node_sign_no_token_for_other_services() -> None:
    """A stolen node has its own secret and the keys of its callers. None of them signs for another audience."""
    stolen = [pairwise_key(SECRET, NODE), pairwise_key(OTHER_SECRET, NODE), "c" * 32]
    for secret in stolen:
        for audience in ("admission", "scheduler", OTHER_NODE):
            assert a_verifier(audience).caller_of(a_token(audience, secret=secret)) is None


def test_caller_in_a_token_cannot_be_replaced() -> None:
    forged = a_token().replace("gateway", "scheduler", 1)
    assert a_verifier().caller_of(forged) is None


def test_expiry_in_a_token_cannot_be_replaced() -> None:
    caller, expiry, signature = a_token().split(".")
    assert a_verifier().caller_of(f"{caller}.{int(expiry) + 1}.{signature}") is None


@pytest.mark.parametrize(
    ("age_s", "is_valid"),
    [
        (0, True),
        (TOKEN_LIFETIME_S + CLOCK_TOLERANCE_S - 1, True),
        (TOKEN_LIFETIME_S + CLOCK_TOLERANCE_S, False),
        (-CLOCK_TOLERANCE_S, True),
        (-CLOCK_TOLERANCE_S - 1, False),
        (86_400, False),
    ],
)
def test_token_is_valid_for_its_lifetime_and_the_clock_tolerance(age_s: float, is_valid: bool) -> None:
    verifier = a_verifier(clock=SetClock(1_000_000.0 + age_s))
    assert (verifier.caller_of(a_token()) is not None) == is_valid


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "gateway", "gateway.1", "gateway..", "gateway.x.y", "gateway.-1.00", "gateway.1000060.",
     "gateway.1000060.é", "gateway.٣.00", f"gateway.{'9' * 5000}.00", SECRET, f"{'g' * 10000}.1.2"],
)  # fmt: skip
def test_malformed_token_is_refused(token: str) -> None:
    assert a_verifier().caller_of(token) is None


def test_token_is_reused_for_half_of_its_lifetime() -> None:
    clock = SetClock()
    issuer = TokenIssuer("gateway", SECRET, clock=clock)
    first = issuer.token_for(NODE)
    clock.now += TOKEN_LIFETIME_S / 2 - 1
    assert issuer.token_for(NODE) == first
    assert issuer.token_for("admission") != first
    clock.now += 2
    assert issuer.token_for(NODE) != first


def test_token_is_signed_again_after_the_clock_was_set_back() -> None:
    clock = SetClock()
    issuer = TokenIssuer("gateway", SECRET, clock=clock)
    issuer.token_for(NODE)
    clock.now -= 10_000
    assert a_verifier(clock=clock).caller_of(issuer.token_for(NODE)) == "gateway"
