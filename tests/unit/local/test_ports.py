"""Two systems that start at the same time choose different ports before either listens."""

import socket
from contextlib import ExitStack

from arl_local.state_dir import choose_ports


def a_free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_port_chosen_by_another_system_is_taken_until_it_ends() -> None:
    port = a_free_port()
    wanted = {"gateway": ("127.0.0.1", (port,))}
    with ExitStack() as first:
        assert choose_ports(wanted, first) == {"gateway": port}
        with ExitStack() as second:
            assert choose_ports(wanted, second)["gateway"] != port
    with ExitStack() as third:
        assert choose_ports(wanted, third) == {"gateway": port}
