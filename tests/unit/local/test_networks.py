"""Test which networks may connect to a system that serves other machines."""

import pytest

from arl_local.join.networks import cluster_networks
from arl_local.postgres.tls_relay import node_role_of


def test_loopback_address_serves_this_machine_only() -> None:
    assert cluster_networks("127.0.0.1", ()) == ("127.0.0.0/8", "::1/128")


def test_chosen_networks_replace_the_default() -> None:
    assert cluster_networks("10.0.0.1", ("10.0.0.0/16", "192.168.7.0/24")) == ("10.0.0.0/16", "192.168.7.0/24")


@pytest.mark.parametrize(
    ("listen", "networks", "said"),
    [
        ("head.internal", (), "--listen head.internal: must be an IP address"),
        ("0.0.0.0", (), "--listen 0.0.0.0: nodes need one address"),
        ("203.0.113.9", (), "give it with --network"),
        ("10.0.0.1", ("10.0.0.7/24",), "--network 10.0.0.7/24: .*host bits"),
        ("10.0.0.1", ("office",), "--network office"),
    ],
)
def test_wrong_address_or_network_is_refused(listen: str, networks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cluster_networks(listen, networks)


def startup(user: str, database: str) -> bytes:
    return b"\0\0\0\0\0\x03\0\0" + b"\0".join((b"user", user.encode(), b"database", database.encode(), b"", b""))


@pytest.mark.parametrize(
    ("user", "database", "is_node"),
    [
        ("tangram_cpu_0123456789ab", "tangram", True),
        ("tangram_cpu_0123456789ab", "postgres", False),
        ("tangram_cpu", "tangram", False),
        ("tangram_gateway", "tangram", False),
        ("tangram", "tangram", False),
        ("other_cpu_0123456789ab", "tangram", False),
    ],
)
def test_only_roles_of_nodes_connect_from_other_machines(user: str, database: str, is_node: bool) -> None:
    assert node_role_of(startup(user, database), "tangram") == (user if is_node else None)
