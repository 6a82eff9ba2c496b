"""Probes of sockets on loopback, of local sockets and of waiting for them."""

from support.probe import Probe, python, sh

_ECHO = """
        import socket, threading
        def serve(server):
            peer, _ = server.accept()
            peer.sendall(peer.recv(100).upper()); peer.close()
"""

PROBES: tuple[Probe, ...] = (
    python(
        "tcp_on_loopback",
        _ECHO
        + """
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=serve, args=[server], daemon=True).start()
        client = socket.create_connection(server.getsockname())
        client.sendall(b"hello"); print(client.recv(100))
        """,
        "b'HELLO'\n",
    ),
    python(
        "tcp_on_loopback_of_ipv6",
        _ECHO
        + """
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
        threading.Thread(target=serve, args=[server], daemon=True).start()
        client = socket.create_connection(server.getsockname()[:2])
        client.sendall(b"six"); print(client.recv(100))
        """,
        "b'SIX'\n",
    ),
    python(
        "tcp_on_all_addresses",
        _ECHO
        + """
        server = socket.create_server(("", 0))
        threading.Thread(target=serve, args=[server], daemon=True).start()
        client = socket.create_connection(("localhost", server.getsockname()[1]))
        client.sendall(b"all"); print(client.recv(100))
        """,
        "b'ALL'\n",
    ),
    python(
        "udp_on_loopback",
        """
        import socket
        first, second = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        first.bind(("127.0.0.1", 0))
        second.sendto(b"datagram", first.getsockname())
        print(first.recvfrom(100)[0])
        """,
        "b'datagram'\n",
    ),
    python(
        "other_addresses_of_loopback",
        """
        import socket
        server = socket.create_server(("127.8.9.10", 0))
        print(socket.create_connection(server.getsockname()).getpeername()[0])
        """,
        "127.8.9.10\n",
    ),
    python(
        "local_socket_in_a_file",
        _ECHO
        + """
        server = socket.socket(socket.AF_UNIX); server.bind("s.sock"); server.listen()
        threading.Thread(target=serve, args=[server], daemon=True).start()
        client = socket.socket(socket.AF_UNIX); client.connect("s.sock")
        client.sendall(b"local"); print(client.recv(100))
        """,
        "b'LOCAL'\n",
    ),
    python(
        "local_socket_with_an_abstract_name",
        _ECHO
        + """
        server = socket.socket(socket.AF_UNIX); server.bind("\\0probe"); server.listen()
        threading.Thread(target=serve, args=[server], daemon=True).start()
        client = socket.socket(socket.AF_UNIX); client.connect("\\0probe")
        client.sendall(b"name"); print(client.recv(100))
        """,
        "b'NAME'\n",
    ),
    python(
        "local_datagrams_and_packets",
        """
        import socket
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first.send(b"a"); first.send(b"b"); print(second.recv(9), second.recv(9))
        first = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); first.bind("d.sock")
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"c", "d.sock"); print(first.recv(9))
        """,
        "b'a' b'b'\nb'c'\n",
    ),
    python(
        "files_and_credentials_over_a_local_socket",
        """
        import os, socket, struct
        first, second = socket.socketpair()
        socket.send_fds(first, [b"x"], [os.open("f", os.O_CREAT | os.O_RDWR)])
        _, handles, _, _ = socket.recv_fds(second, 10, 1)
        os.write(handles[0], b"passed"); print(open("f").read())
        print(struct.unpack("3i", first.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)) == (os.getpid(), os.getuid(), os.getgid()))
        """,
        "passed\nTrue\n",
    ),
    python(
        "two_servers_share_a_port",
        """
        import socket
        first, second = socket.socket(), socket.socket()
        for each in (first, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("127.0.0.1", 0)); second.bind(first.getsockname())
        first.listen(); second.listen(); print("shared")
        """,
        "shared\n",
    ),
    python(
        "options_of_sockets",
        """
        import socket
        s = socket.socket()
        for level, name, value in ((1, socket.SO_KEEPALIVE, 1), (1, socket.SO_RCVBUF, 65536), (1, socket.SO_SNDBUF, 65536),
                                   (6, socket.TCP_NODELAY, 1), (6, socket.TCP_KEEPIDLE, 5), (6, socket.TCP_USER_TIMEOUT, 5), (1, socket.SO_REUSEADDR, 1)):
            s.setsockopt(level, name, value)
            print(s.getsockopt(level, name) >= value, end=" ")
        """,
        "True " * 7,
    ),
    python(
        "epoll_poll_and_select",
        """
        import os, select, selectors
        read, write = os.pipe()
        os.write(write, b"x")
        epoll = select.epoll(); epoll.register(read)
        poll = select.poll(); poll.register(read, select.POLLIN)
        print(epoll.poll(1) == [(read, 1)], poll.poll(1000) == [(read, 1)], select.select([read], [], [], 1)[0] == [read])
        print(type(selectors.DefaultSelector()).__name__)
        """,
        "True True True\nEpollSelector\n",
    ),
    python(
        "names_of_the_own_machine",
        """
        import socket
        print(sorted({each[4][0] for each in socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)} - {"::1"}))
        print(socket.gethostbyname("localhost"), len(socket.gethostname()) > 0)
        print(socket.gethostbyname(socket.gethostname()) != "")
        """,
        "['127.0.0.1']\n127.0.0.1 True\nTrue\n",
    ),
    python(
        "fully_qualified_name_is_quick",
        """
        import socket, time
        begin = time.monotonic()
        print(bool(socket.getfqdn()), time.monotonic() - begin < 2)
        """,
        "True True\n",
    ),
    python(
        "list_of_interfaces",
        """
        import socket
        print([name for _, name in socket.if_nameindex()], socket.if_nametoindex("lo"))
        """,
        "['lo'] 1\n",
    ),
    python(
        "interfaces_by_getifaddrs",
        """
        import ctypes
        libc, found = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        print(libc.getifaddrs(ctypes.byref(found)), bool(found.value))
        """,
        "0 True\n",
    ),
    python(
        "route_netlink_socket",
        """
        import socket, struct
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        s.bind((0, 0))
        s.send(struct.pack("IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0))
        print(struct.unpack_from("IH", s.recv(65536))[1])
        """,
        "16\n",
    ),
    sh(
        "ip_command_shows_loopback",
        "ip -o link show | cut -d: -f1,2; ip -o -4 addr show lo | awk '{print $4}'",
        "1: lo\n127.0.0.1/8\n",
        needs=("ip",),
    ),
    python(
        "interfaces_by_ioctl",
        """
        import fcntl, socket, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            flags = struct.unpack_from("16sH", fcntl.ioctl(s, 0x8913, struct.pack("16s16x", b"lo")))[1]
            print(flags & 1, flags & 8)
        """,
        "1 8\n",
    ),
    python(
        "no_network_outside",
        """
        import socket
        try:
            socket.create_connection(("192.0.2.1", 80), 5)
        except OSError as error:
            print(error.strerror)
        """,
        "Network is unreachable\n",
    ),
    python(
        "unknown_names_fail_quickly",
        """
        import socket, time
        begin = time.monotonic()
        try:
            socket.getaddrinfo("nowhere.invalid", 80)
        except socket.gaierror as error:
            print("unknown", time.monotonic() - begin < 5)
        """,
        "unknown True\n",
    ),
    python(
        "refused_connection",
        """
        import socket
        s = socket.socket(); s.bind(("127.0.0.1", 0))
        try:
            socket.create_connection(s.getsockname())
        except ConnectionRefusedError:
            print("refused")
        """,
        "refused\n",
    ),
    python(
        "many_connections",
        """
        import socket
        server = socket.create_server(("127.0.0.1", 0), backlog=128)
        pairs = [(socket.create_connection(server.getsockname()), server.accept()) for _ in range(100)]
        print(len(pairs))
        """,
        "100\n",
    ),
    python(
        "ten_megabytes_over_loopback",
        """
        import socket, threading
        server = socket.create_server(("127.0.0.1", 0))
        def send():
            with socket.create_connection(server.getsockname()) as client:
                client.sendall(bytes(10 << 20))
        threading.Thread(target=send).start()
        peer, total = server.accept()[0], 0
        while chunk := peer.recv(1 << 16):
            total += len(chunk)
        print(total >> 20)
        """,
        "10\n",
    ),
    python(
        "raw_sockets_are_refused",
        """
        import socket
        try:
            socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
        except PermissionError:
            print("refused")
        """,
        "refused\n",
    ),
    python(
        "multicast_on_loopback_fails_cleanly",
        """
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        print("set")
        """,
        "set\n",
    ),
    python(
        "http_server_on_loopback",
        """
        import http.server, threading, urllib.request
        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_): ...
        server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open("page", "w").write("served")
        print(urllib.request.urlopen(f"http://localhost:{server.server_port}/page").read())
        """,
        "b'served'\n",
    ),
    sh(
        "http_server_module_and_curl",
        """
        echo page >page
        python3 -u -m http.server --bind 127.0.0.1 8765 >log 2>&1 & server=$!
        until grep -q Serving log; do sleep 0.05; done
        curl -s http://127.0.0.1:8765/page; curl -s http://localhost:8765/page; kill $server; wait $server 2>/dev/null; echo $?
        """,
        "page\npage\n143\n",
        needs=("python3", "curl"),
    ),
    python(
        "files_of_the_network",
        """
        print(open("/proc/net/tcp").readline().split()[0], "lo:" in open("/proc/net/dev").read())
        print(int(open("/proc/sys/net/core/somaxconn").read()) >= 128)
        """,
        "sl True\nTrue\n",
    ),
)
