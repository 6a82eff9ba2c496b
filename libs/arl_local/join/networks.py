"""Addresses of this machine, and the networks of its interfaces."""

import fcntl
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network, ip_address, ip_network

__all__ = ["cluster_networks", "local_address_towards"]

_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def cluster_networks(listen: str, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the networks that may connect: the chosen ones, or that of the interface with the address `listen`.

    Raises ValueError, with what to do, if an argument is wrong or the network is unknown.
    """
    try:
        address = ip_address(listen)
    except ValueError:
        raise ValueError(f"--listen {listen}: must be an IP address of this machine") from None
    if address.is_unspecified:
        raise ValueError(f"--listen {listen}: nodes need one address; choose that of the network of the nodes")
    for network in chosen:
        try:
            ip_network(network)
        except ValueError as error:
            raise ValueError(f"--network {network}: {error}; for example 10.0.0.0/24") from None
    if chosen:
        return tuple(chosen)
    if address.is_loopback:
        return ("127.0.0.0/8", "::1/128")
    if (network_of_interface := _network_of(listen)) is None:
        raise ValueError(f"--listen {listen}: the network of this address is unknown; give it with --network")
    return (str(network_of_interface),)


def local_address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches a host. Nothing is sent. Raises OSError."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _network_of(address: str) -> IPv4Network | None:
    """Return the network of the interface with this IPv4 address, or None."""
    if ":" in address:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _ioctl(probe, _SIOCGIFADDR, name) == address and (mask := _ioctl(probe, _SIOCGIFNETMASK, name)):
                return IPv4Network(f"{address}/{mask}", strict=False)
    return None


def _ioctl(probe: socket.socket, number: int, interface: str) -> str | None:
    try:
        answer = fcntl.ioctl(probe.fileno(), number, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
