"""Connections to targets: resolved once, checked, and made to the checked address."""

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from arl_core.network.addresses import refused_range
from arl_core.network.policy import IpAddress, IpNetwork, parse_address
from arl_cpu.egress.resolver import HostResolver

__all__ = ["Dialer", "TargetRefused"]

_CONNECT_TIMEOUT_S = 10.0
_MAX_ADDRESSES = 4
_LIMIT_BYTES = 64 << 10


@dataclass
class TargetRefused(Exception):
    """A target that may not be reached. The reason is one of `NetworkRefusal`."""

    host: str
    port: int
    reason: str


class Dialer:
    """A maker of connections for all environments.

    `permitted` are networks that the operator lists. Of special addresses and of this machine's own, only they may be
    reached.
    """

    def __init__(self, resolver: HostResolver, permitted: Sequence[IpNetwork] = ()) -> None:
        self._resolver, self._permitted = resolver, tuple(permitted)

    async def addresses(self, host: str, port: int) -> list[IpAddress]:
        """Return the addresses that may be reached. Raises TargetRefused if there are none, and ResolveFailed."""
        literal = parse_address(host)
        found = [literal] if literal is not None else list(await self._resolver.resolve(host))
        reasons = [self._refusal(each) for each in found]
        usable = [address for address, reason in zip(found, reasons, strict=True) if reason is None]
        if not usable:
            raise TargetRefused(host, port, next((each for each in reasons if each), "reserved"))
        return usable

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host. Raises TargetRefused, ResolveFailed and OSError."""
        problem: OSError = OSError(errno.EHOSTUNREACH, "no address of the host answers")
        for address in (await self.addresses(host, port))[:_MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(str(address), port, limit=_LIMIT_BYTES)
            except TimeoutError:
                problem = OSError(errno.ETIMEDOUT, "the host does not answer")
            except OSError as error:
                problem = error
        raise problem

    def _refusal(self, address: IpAddress) -> str | None:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if any(mapped in network for network in self._permitted):
            return None
        if (kind := refused_range(mapped)) is not None:
            return kind
        return "own_machine" if _is_own(mapped) else None


def _is_own(address: IpAddress) -> bool:
    """Return True for a public address of this machine, whose services must not be reached. Sends no packet."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # it cannot be reached, as the connection will show
        return parse_address(probe.getsockname()[0]) == address
