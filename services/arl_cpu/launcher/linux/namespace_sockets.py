"""Sockets in the network namespaces of environments, created without a process inside.

A socket belongs for its whole life to the namespace in which it was created. The process that gets it may connect it
from anywhere, and reaches only what a process inside could reach.
"""

import errno
import os
import socket
import sys
from typing import NoReturn

from arl_cpu.launcher.linux import syscalls
from arl_cpu.launcher.linux.packet_channel import PacketChannel

__all__ = ["create_socket"]

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_CHILD_TIMEOUT_S = 0.5
"""Seconds for a child process that needs a few milliseconds. The launcher does nothing else meanwhile."""
_EXIT_WRONG_NAMESPACE = 5


def create_socket(network: int, family: socket.AddressFamily) -> socket.socket:
    """Create a TCP socket, not connected, in an opened network namespace. Raises OSError.

    Root needs 0.1 ms. An ordinary user may enter the namespace only after its user namespace, which no process can
    leave, so that a child process creates the socket.
    """
    try:
        return _create_in_place(network, family)
    except PermissionError:
        return _create_in_child(network, family)


def _create_in_place(network: int, family: socket.AddressFamily) -> socket.socket:
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.enter_namespace(network, _NEW_NET)
        try:
            return socket.socket(family, socket.SOCK_STREAM)
        finally:
            _return_to(own)
    finally:
        os.close(own)


def _return_to(own: int) -> None:
    try:
        syscalls.enter_namespace(own, _NEW_NET)
    except OSError as error:
        # All later sockets of this process would be in an environment.
        sys.stderr.write(f"arl_cpu.launcher: the network namespace cannot be left: {error}\n")
        os._exit(_EXIT_WRONG_NAMESPACE)


def _create_in_child(network: int, family: socket.AddressFamily) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        if os.fork() == 0:  # the event loop reaps it
            _send_from_inside(theirs, network, family)
        theirs.close()
        ours.settimeout(_CHILD_TIMEOUT_S)
        received = PacketChannel(ours).receive()
        if received is None or not received[1]:
            failed = received[0] if received is not None else {}
            reason = failed.get("error", "the process that creates sockets has ended")
            raise OSError(failed.get("errno", errno.EACCES), reason)
        return socket.socket(fileno=received[1][0])


def _send_from_inside(channel: socket.socket, network: int, family: socket.AddressFamily) -> NoReturn:
    try:
        syscalls.enter_namespace(syscalls.owner_of_namespace(network), _NEW_USER)
        syscalls.enter_namespace(network, _NEW_NET)
        with socket.socket(family, socket.SOCK_STREAM) as made:
            PacketChannel(channel).send({}, [made.fileno()])
    except OSError as error:
        PacketChannel(channel).send({"error": str(error), "errno": error.errno})
    finally:
        os._exit(0)
