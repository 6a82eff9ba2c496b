"""`python -m arl_cpu.egress CHANNEL UID`: serve the network of environments until the launcher ends.

CHANNEL is the inherited descriptor of the launcher's channel. UID is the user to switch to, or `-` to keep the user.
"""

import asyncio
import encodings.idna  # noqa: F401 # asyncio imports it at the first connection, when this user may not read it
import os
import resource
import signal
import socket
import sys

from arl_core.network.addresses import parse_name_servers, parse_networks
from arl_cpu.egress.dialer import Dialer
from arl_cpu.egress.resolver import DnsResolver
from arl_cpu.egress.service import EgressService
from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.packet_channel import PacketChannel

PRIVATE, RESOLVERS = "TANGRAM_NETWORK_PRIVATE", "TANGRAM_NETWORK_RESOLVERS"
_NICENESS = 5
"""Programs inside decide how much this process does, and it must not delay heartbeats."""


def main() -> int:
    """Run the process. Return its exit code."""
    channel, user = int(sys.argv[1]), sys.argv[2]
    dialer = Dialer(
        DnsResolver.of_this_host(parse_name_servers(os.environ.get(RESOLVERS, ""))),
        parse_networks(os.environ.get(PRIVATE, "")),
    )
    _drop_rights(None if user == "-" else int(user))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the launcher, and its end this process
    asyncio.run(_serve(PacketChannel(socket.socket(fileno=channel)), dialer))
    return 0


async def _serve(channel: PacketChannel, dialer: Dialer) -> None:
    await EgressService(channel, dialer).run()


def _drop_rights(uid: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        syscalls.empty_bounding_set()
        os.setresuid(uid, uid, uid)
    os.nice(_NICENESS)
    syscalls.empty_capability_sets()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.protect_agent()


if __name__ == "__main__":
    sys.exit(main())
