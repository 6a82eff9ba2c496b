"""Probes of resource limits: what they are at the start, and what programs set themselves."""

from support.probe import Probe, bash, python, sh

_CHILD = """
        import resource, subprocess, sys
        def run(code, *limits):
            def lower():
                for kind, value in limits:
                    resource.setrlimit(kind, (value, value))
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=lower)
            return done.returncode, done.stdout.strip() or (done.stderr.strip().splitlines() or [""])[-1]
"""

PROBES: tuple[Probe, ...] = (
    python(
        "limits_at_the_start",
        """
        import resource as r
        soft = lambda kind: r.getrlimit(kind)[0]
        print(soft(r.RLIMIT_NOFILE) >= 1024, soft(r.RLIMIT_STACK) in (8 << 20, -1))
        for name in ("AS", "DATA", "FSIZE", "CPU", "RSS"):
            print(name, soft(getattr(r, "RLIMIT_" + name)))
        print(soft(r.RLIMIT_NPROC) == -1 or soft(r.RLIMIT_NPROC) >= 256, soft(r.RLIMIT_MEMLOCK) == -1 or soft(r.RLIMIT_MEMLOCK) >= 65536)
        print(soft(r.RLIMIT_SIGPENDING) >= 128, soft(r.RLIMIT_MSGQUEUE) >= 65536)
        """,
        "True True\nAS -1\nDATA -1\nFSIZE -1\nCPU -1\nRSS -1\nTrue True\nTrue True\n",
    ),
    bash(
        "limits_of_the_shell",
        "ulimit -f; ulimit -v; ulimit -t; ulimit -d; ulimit -s 1024 && ulimit -s; ulimit -n 100 && ulimit -n; ulimit -c 0 && ulimit -c",
        "unlimited\nunlimited\nunlimited\nunlimited\n1024\n100\n0\n",
    ),
    bash(
        "hard_limits_of_the_shell",
        "ulimit -Hf; ulimit -Hv; ulimit -Hd; ulimit -Ht; test $(ulimit -Hn) -ge 4096 && echo files",
        "unlimited\n" * 4 + "files\n",
    ),
    python(
        "stack_is_raised",
        """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        for size in (64 << 20, 512 << 20):
            resource.setrlimit(resource.RLIMIT_STACK, (size, hard))
        print(resource.getrlimit(resource.RLIMIT_STACK)[0] >> 20)
        """,
        "512\n",
    ),
    sh(
        "stack_without_a_limit",
        "ulimit -s unlimited && ulimit -s; python3 -c 'print(1)'",
        "unlimited\n1\n",
        needs=("python3",),
    ),
    python(
        "open_files_are_raised_to_the_hard_limit",
        """
        import os, resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        handles = [os.open("/dev/null", os.O_RDONLY) for _ in range(3000)]
        print(len(handles), hard >= 4096)
        """,
        "3000 True\n",
    ),
    python(
        "address_space_is_limited_by_a_harness",
        _CHILD
        + """
        gib = 1 << 30
        print(run("print(len(bytes(100 << 20)) >> 20)", (resource.RLIMIT_AS, 4 * gib)))
        print(run("bytes(3 << 30)", (resource.RLIMIT_AS, gib)))
        """,
        "(0, '100')\n(1, 'MemoryError')\n",
    ),
    python(
        "data_is_limited_by_a_harness",
        _CHILD
        + """
        print(run("print(1)", (resource.RLIMIT_DATA, 1 << 30)), run("bytes(2 << 30)", (resource.RLIMIT_DATA, 1 << 30)))
        """,
        "(0, '1') (1, 'MemoryError')\n",
    ),
    python(
        "data_limit_is_set_to_any_size",
        """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_RSS):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (64 << 30, hard)); resource.setrlimit(kind, (1 << 40, 1 << 40))
        print("set")
        """,
        "set\n",
    ),
    python(
        "cpu_time_is_limited_by_a_harness",
        """
        import resource, subprocess, sys
        def lower():
            resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
        print(subprocess.run([sys.executable, "-c", "while True: pass"], preexec_fn=lower).returncode)
        """,
        "-24\n",
    ),
    python(
        "file_size_is_limited_by_a_harness",
        _CHILD
        + """
        print(run("open('f', 'wb', 0).write(bytes(4096)) < 4096 and open('f', 'ab', 0).write(b'x')", (resource.RLIMIT_FSIZE, 1024)))
        print(run("print(open('f', 'wb').write(bytes(4096)))", (resource.RLIMIT_FSIZE, 8 << 30)))
        """,
        "(1, 'OSError: [Errno 27] File too large')\n(0, '4096')\n",
    ),
    sh("file_size_signal", "(ulimit -f 1; head -c 100000 /dev/zero >f) 2>/dev/null; echo $?", "153\n"),
    python(
        "processes_are_limited_by_a_harness",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NPROC, (4096 if resource.getrlimit(resource.RLIMIT_NPROC)[1] in (-1,) else resource.getrlimit(resource.RLIMIT_NPROC)[1],) * 2)
        import subprocess
        print(subprocess.run(["true"]).returncode)
        """,
        "0\n",
    ),
    python(
        "no_new_processes_after_a_limit_of_zero",
        """
        import os, resource
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            os.fork(); print("forked")
        except BlockingIOError:
            print("refused")
        """,
        "refused\n",
    ),
    python(
        "usual_limits_of_code_harnesses_together",
        _CHILD
        + """
        limits = [(resource.RLIMIT_AS, 4 << 30), (resource.RLIMIT_DATA, 4 << 30), (resource.RLIMIT_STACK, 64 << 20), (resource.RLIMIT_CPU, 10),
                  (resource.RLIMIT_FSIZE, 64 << 20), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)]
        print(run("import json, tempfile; print(sum(range(10)))", *limits))
        """,
        "(0, '45')\n",
    ),
    python(
        "limits_cannot_be_raised_above_hard",
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        except ValueError as error:
            print(error)
        """,
        "not allowed to raise maximum limit\n",
    ),
    python(
        "core_limit_and_dumpable",
        """
        import ctypes, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        libc = ctypes.CDLL(None)
        print(libc.prctl(3, 0, 0, 0, 0), libc.prctl(4, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0))
        """,
        "1 0 0\n",
    ),
    python(
        "deep_recursion_by_a_raised_limit",
        """
        import sys, threading
        sys.setrecursionlimit(100_000); threading.stack_size(256 << 20)
        def down(n):
            return 0 if n == 0 else 1 + down(n - 1)
        result = []
        thread = threading.Thread(target=lambda: result.append(down(50_000)))
        thread.start(); thread.join(); print(result)
        """,
        "[50000]\n",
    ),
    python(
        "recursion_error",
        """
        def down(n):
            return down(n + 1)
        try:
            down(0)
        except RecursionError as error:
            print(error)
        """,
        "maximum recursion depth exceeded\n",
    ),
)
