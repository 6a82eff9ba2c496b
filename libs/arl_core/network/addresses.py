"""Addresses that no policy may reach: private, local and special ones, unless the operator lists their network."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from arl_core.network.policy import IpAddress, IpNetwork

__all__ = ["NameServer", "parse_name_servers", "parse_networks", "refused_range"]

_DNS_PORT = 53

_SPECIAL: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this_host"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "private"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata"),  # of Azure, a public address
    ("169.254.0.0/16", "link_local"),  # has the metadata services of most clouds
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "private"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "this_host"),
    ("::1/128", "loopback"),
    ("::/96", "reserved"),  # contains IPv4 addresses
    ("::ffff:0:0/96", "reserved"),
    ("64:ff9b::/96", "reserved"),  # a translator reaches any IPv4 address by it
    ("64:ff9b:1::/48", "reserved"),
    ("100::/64", "reserved"),
    ("2001::/23", "reserved"),  # Teredo and others
    ("2001:db8::/32", "reserved"),
    ("2002::/16", "reserved"),  # contains IPv4 addresses
    ("3fff::/20", "reserved"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link_local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_RANGES: tuple[tuple[IpNetwork, str], ...] = tuple((ip_network(text), kind) for text, kind in _SPECIAL)
_GLOBAL_UNICAST = ip_network("2000::/3")


def refused_range(address: IpAddress, permitted: Iterable[IpNetwork] = ()) -> str | None:
    """Return the kind of a special address, or None if it may be reached.

    `permitted` are networks that the operator lists. Of loopback, link-local and private addresses, only they may be
    reached.
    """
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in network for network in permitted):
        return None
    for network, kind in _RANGES:
        if address in network:
            return kind
    return None if isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST else "reserved"


def parse_networks(text: str) -> tuple[IpNetwork, ...]:
    """Parse networks that are separated by commas. Raises ValueError."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class NameServer:
    """The address and the port of a name server."""

    address: str
    port: int = _DNS_PORT


def parse_name_servers(text: str) -> tuple[NameServer, ...]:
    """Parse `ADDRESS` or `ADDRESS:PORT`, separated by commas. Raises ValueError."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, _, port = part.partition(":") if part.count(":") == 1 else (part, "", "")
        found.append(NameServer(str(ip_address(host)), int(port) if port else _DNS_PORT))
    return tuple(found)
