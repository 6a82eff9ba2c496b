"""Network policies: which hosts and ports programs of an environment may reach."""

import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Literal

__all__ = [
    "DEFAULT_PORTS",
    "MAX_TARGETS",
    "POLICY_NAME",
    "AllowedTarget",
    "IpAddress",
    "IpNetwork",
    "NetworkMode",
    "NetworkPolicy",
    "parse_address",
    "parse_target",
]

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
NetworkMode = Literal["none", "allow", "open"]

DEFAULT_PORTS = frozenset({80, 443})
"""Ports of a target that names none."""
MAX_TARGETS = 256
POLICY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
"""Form of the name of a policy that an operator defines."""
_MAX_NAME = 253
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMERIC_LABEL = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_MIN_PREFIX = {4: 8, 6: 32}
"""Shortest prefix of a network by version. `open` is the policy for everything."""


@dataclass(frozen=True, slots=True)
class AllowedTarget:
    """A host name, a pattern of host names, or a network, with one port or the default ports."""

    host: str
    """Name in lower case, `*.` and a name for all names below it, or a network in its canonical form."""
    port: int | None = None
    network: IpNetwork | None = None

    def __str__(self) -> str:
        host = self.host
        if self.network is not None and self.network.num_addresses == 1:
            host = str(self.network.network_address)
        if self.port is None:
            return host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def allows_port(self, port: int) -> bool:
        """Return True if the target has this port."""
        return port in DEFAULT_PORTS if self.port is None else port == self.port

    def allows_name(self, name: str) -> bool:
        """Return True if a name in lower case matches."""
        if self.network is not None:
            return False
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and len(name) > len(self.host) - 1
        return name == self.host


@dataclass(frozen=True)
class NetworkPolicy:
    """A policy. Names and addresses match separately: a listed name does not allow its address, nor the reverse."""

    mode: NetworkMode = "none"
    targets: tuple[AllowedTarget, ...] = ()

    @classmethod
    def from_json(cls, value: Any) -> "NetworkPolicy":
        """Decode a stored policy: `none`, `open`, None for `none`, or an object with the list `allow`."""
        if value in (None, "none"):
            return cls()
        if value == "open":
            return cls("open")
        return cls("allow", tuple(parse_target(each) for each in value["allow"]))

    def to_json(self) -> str | dict[str, list[str]]:
        """Return the policy as it is stored and shown."""
        return {"allow": [str(each) for each in self.targets]} if self.mode == "allow" else self.mode

    @property
    def is_closed(self) -> bool:
        """True if nothing may be reached."""
        return self.mode == "none"

    def allows(self, host: str, port: int) -> bool:
        """Return True if a name in lower case or an address, and the port, may be reached."""
        if self.mode != "allow":
            return self.mode == "open"
        address = parse_address(host)
        return any(
            each.allows_port(port)
            and (each.allows_name(host) if address is None else each.network is not None and address in each.network)
            for each in self.targets
        )

    def resolves(self, name: str) -> bool:
        """Return True if the address of a name in lower case may be asked for."""
        return self.mode == "open" or any(each.allows_name(name) for each in self.targets)

    @cached_property
    def networks(self) -> tuple[IpNetwork, ...]:
        """The listed networks."""
        return tuple(each.network for each in self.targets if each.network is not None)


def parse_target(text: str) -> AllowedTarget:
    """Parse `HOST`, `HOST:PORT`, `*.HOST`, an address or a network. Raises ValueError with what to change."""
    host, port = _split_port(text.strip().lower())
    if (network := _parse_network(host)) is not None:
        if network.prefixlen < _MIN_PREFIX[network.version]:
            raise ValueError(
                f"{text!r} is too large a network: use at least /{_MIN_PREFIX[network.version]}, or the policy `open`"
            )
        return AllowedTarget(str(network), port, network)
    name = host.removeprefix("*.").removesuffix(".")
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name) or _NUMERIC_LABEL.fullmatch(name.rpartition(".")[2]):
        raise _not_a_host(text)
    if host.startswith("*.") and "." not in name:
        raise ValueError(
            f"{text!r} matches a whole top-level domain: name more of the domain, or use the policy `open`"
        )
    return AllowedTarget(f"*.{name}" if host.startswith("*.") else name, port)


def parse_address(host: str) -> IpAddress | None:
    """Return the address that a text is, or None. An IPv4 address inside an IPv6 address is that IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _split_port(text: str) -> tuple[str, int | None]:
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise ValueError(f"{text[:100]!r} must have a colon and a port after the bracket")
        port = rest[1:] if rest else ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not port:
        if text.endswith(":") and text.count(":") == 1:
            raise ValueError(f"{text[:100]!r} has a colon without a port")
        return host, None
    if not port.isascii() or not port.isdecimal():
        raise _not_a_host(text)
    if len(port) > 5 or not 1 <= int(port) <= 65_535:
        raise ValueError(f"{text[:100]!r} has an invalid port: use a number from 1 to 65535")
    return host, int(port)


def _not_a_host(text: str) -> ValueError:
    return ValueError(
        f"{text[:100]!r} is not a host: use a name such as pypi.org, *.github.com or pypi.org:443, an address, or a"
        " network such as 10.1.0.0/16:5432"
    )


def _parse_network(host: str) -> IpNetwork | None:
    try:
        return ip_network(host, strict=False)
    except ValueError:
        return None
