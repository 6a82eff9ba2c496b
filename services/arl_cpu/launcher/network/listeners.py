"""The process that makes the sockets of an environment in its network namespace and sends them to the launcher.

It enters only the user and the network namespace. Programs inside cannot see, signal or trace it.
"""

import errno
import json
import os
import socket
import struct
from typing import NoReturn

from arl_cpu.launcher.linux import syscalls

__all__ = ["HTTP_PROXY", "SOCKETS", "run_listener_process"]

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_ANY, _LOOPBACK = "0.0.0.0", "127.0.0.1"  # noqa: S104 # of the environment's namespace
_PROXY_PORT = 3128
HTTP_PROXY = f"http://{_LOOPBACK}:{_PROXY_PORT}"
SOCKETS = {
    "proxy": (socket.SOCK_STREAM, _LOOPBACK, _PROXY_PORT),
    "dns": (socket.SOCK_DGRAM, _ANY, 53),
    "tls": (socket.SOCK_STREAM, _ANY, 443),
    "http": (socket.SOCK_STREAM, _ANY, 80),
}
"""Kind, address and port of each socket. With the route, `_ANY` receives what programs send to any address."""
_BACKLOG = 128
_LOOPBACK_INDEX = 1

_RTM_NEWROUTE, _NLMSG_ERROR = 24, 2
_REQUEST, _ACK, _CREATE, _EXCLUSIVE = 0x1, 0x4, 0x400, 0x200
_LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE, _RTA_OIF = 255, 4, 254, 2, 4


def run_listener_process(stream: int, namespace: int) -> NoReturn:
    """Make the sockets and send them, or an error. Never returns to the caller."""
    try:
        end = socket.socket(fileno=os.dup(stream))
        try:
            _enter(namespace)
            names, sockets = _open_sockets()
            _set_any_address_route()
        except OSError as error:
            end.send(json.dumps({"error": f"{error.strerror or error}: {error.filename or 'socket'}"}).encode())
        else:
            socket.send_fds(end, [json.dumps({"sockets": names}).encode()], [each.fileno() for each in sockets])
    finally:
        os._exit(0)


def _enter(namespace: int) -> None:
    user = syscalls.owner_of_namespace(namespace)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.enter_namespace(user, _NEW_USER)
    syscalls.enter_namespace(namespace, _NEW_NET)


def _open_sockets() -> tuple[list[str], list[socket.socket]]:
    """Return the sockets whose ports are free. A program inside may have its own server on the others."""
    names, sockets = [], []
    for name, (kind, address, port) in SOCKETS.items():
        opened = socket.socket(socket.AF_INET, kind)
        try:
            if kind == socket.SOCK_STREAM:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((address, port))
            if kind == socket.SOCK_STREAM:
                opened.listen(_BACKLOG)
        except OSError as error:
            opened.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        names.append(name)
        sockets.append(opened)
    return names, sockets


def _set_any_address_route() -> None:
    """Deliver IPv4 packets to any address to the sockets of this namespace (AnyIP)."""
    route = struct.pack(
        "=8BI", socket.AF_INET, 0, 0, 0, _LOCAL_TABLE, _STATIC, _HOST_SCOPE, _LOCAL_ROUTE, 0
    ) + struct.pack("=HHI", 8, _RTA_OIF, _LOOPBACK_INDEX)
    header = struct.pack("=IHHII", 16 + len(route), _RTM_NEWROUTE, _REQUEST | _ACK | _CREATE | _EXCLUSIVE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        netlink.send(header + route)
        answer = netlink.recv(4096)
    _, kind, _, _, _ = struct.unpack_from("=IHHII", answer)
    code = struct.unpack_from("=i", answer, 16)[0] if kind == _NLMSG_ERROR else -errno.EPROTO
    if code not in (0, -errno.EEXIST):
        raise OSError(-code, os.strerror(-code), "route")
