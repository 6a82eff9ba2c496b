"""Test which targets a network policy allows and which addresses are always refused."""

from ipaddress import ip_address

import pytest

from arl_core.network.addresses import parse_networks, refused_range
from arl_core.network.policy import NetworkPolicy, parse_target


def allowing(*targets: str) -> NetworkPolicy:
    return NetworkPolicy.from_json({"allow": list(targets)})


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("*.github.com:443", "*.github.com:443"),
        ("localhost:5432", "localhost:5432"),
        ("1.2.3.4", "1.2.3.4"),
        ("10.1.2.3/16:5432", "10.1.0.0/16:5432"),
        ("2606:4700::1", "2606:4700::1"),
        ("[2606:4700::1]:443", "[2606:4700::1]:443"),
        ("[2606:4700::]", "2606:4700::"),
    ],
)
def test_target_is_stored_in_canonical_form(given: str, canonical: str) -> None:
    assert str(parse_target(given)) == canonical
    assert parse_target(canonical) == parse_target(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("*", "is not a host"),
        ("*.com", "top-level domain"),
        ("a.*.com", "is not a host"),
        ("https://pypi.org", "is not a host"),
        ("pypi.org/simple", "is not a host"),
        ("user@pypi.org", "is not a host"),
        ("pypi.org:", "without a port"),
        ("pypi.org:0", "from 1 to 65535"),
        ("pypi.org:99999", "from 1 to 65535"),
        ("0.0.0.0/0", "policy `open`"),
        ("::/0", "policy `open`"),
        ("127.1", "is not a host"),
        ("0x7f000001", "is not a host"),
        ("2130706433", "is not a host"),
        ("[::1]5", "after the bracket"),
        ("", "is not a host"),
    ],
)
def test_invalid_target_is_refused_with_what_to_change(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_target(given)


def test_name_allows_only_itself_on_default_ports() -> None:
    policy = allowing("pypi.org")
    assert policy.allows("pypi.org", 443)
    assert policy.allows("pypi.org", 80)
    assert not policy.allows("pypi.org", 22)
    assert not policy.allows("files.pypi.org", 443)
    assert not policy.allows("notpypi.org", 443)
    assert not policy.allows("pypi.org.evil.example", 443)


def test_wildcard_allows_names_below_and_not_the_name() -> None:
    policy = allowing("*.github.com:443")
    assert policy.allows("api.github.com", 443)
    assert policy.allows("a.b.github.com", 443)
    assert not policy.allows("github.com", 443)
    assert not policy.allows(".github.com", 443)
    assert not policy.allows("evilgithub.com", 443)
    assert not policy.allows("api.github.com", 80)


def test_address_is_allowed_only_by_a_network() -> None:
    policy = allowing("pypi.org", "8.8.0.0/16:5432")
    assert policy.allows("8.8.4.4", 5432)
    assert policy.allows("::ffff:8.8.4.4", 5432)
    assert not policy.allows("8.8.4.4", 443)
    assert not policy.allows("9.9.9.9", 443)


def test_policies_without_list_allow_everything_or_nothing() -> None:
    assert NetworkPolicy.from_json("open").allows("1.1.1.1", 25)
    assert not NetworkPolicy.from_json(None).allows("pypi.org", 443)
    assert NetworkPolicy.from_json("none").is_closed


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("0.0.0.0", "this_host"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.100.100.200", "private"),
        ("169.254.169.254", "link_local"),
        ("168.63.129.16", "metadata"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("::", "this_host"),
        ("::1", "loopback"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "link_local"),
        ("64:ff9b::7f00:1", "reserved"),
        ("2002:7f00:1::", "reserved"),
        ("2001::1", "reserved"),
        ("fd00:ec2::254", "private"),
        ("fe80::1", "link_local"),
        ("ff02::1", "multicast"),
        ("4000::1", "reserved"),
        ("8.8.8.8", None),
        ("172.32.0.1", None),
        ("2606:4700::1111", None),
    ],
)
def test_special_addresses_are_refused(address: str, kind: str | None) -> None:
    assert refused_range(ip_address(address)) == kind


def test_networks_of_the_operator_may_be_reached() -> None:
    permitted = parse_networks("10.1.0.0/16, fd00::/8")
    assert refused_range(ip_address("10.1.2.3"), permitted) is None
    assert refused_range(ip_address("::ffff:10.1.2.3"), permitted) is None
    assert refused_range(ip_address("fd00::1"), permitted) is None
    assert refused_range(ip_address("10.2.0.1"), permitted) == "private"
