"""Probes of what containers refuse, and of what a program may restrict for itself.

The expected values are those of the default seccomp profile of container engines.
"""

from dataclasses import replace

from support.probe import Probe, bash, c_program, python, sh

_CALL = """
        import ctypes, errno, os
        libc = ctypes.CDLL(None, use_errno=True)
        def call(number, *arguments):
            result = libc.syscall(number, *arguments)
            return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""

_PROBES: tuple[Probe, ...] = (
    python(
        "io_uring_is_refused",
        _CALL
        + """
        print(call(425, 1, ctypes.create_string_buffer(120)) in ("EPERM", "ENOSYS"))
        """,
        "True\n",
    ),
    python(
        "namespaces_besides_that_of_users_are_refused",
        _CALL
        + """
        print(*(call(272, flag) for flag in (0x20000, 0x40000000, 0x20000000)))
        """,
        "EPERM EPERM EPERM\n",
    ),
    sh("namespace_of_users", "unshare -r id -u 2>/dev/null; echo $?", "0\n0\n", needs=("unshare",)),
    python(
        "root_directory_and_mounts_are_refused",
        _CALL
        + """
        os.mkdir("d")
        print(call(161, b"d"), call(165, b"none", b"d", b"tmpfs", 0, 0), call(166, b"/proc", 0), call(155, b".", b"."))
        """,
        "EPERM EPERM EPERM EPERM\n",
    ),
    python(
        "performance_counters_are_refused",
        _CALL
        + """
        print(call(298, ctypes.create_string_buffer(b"\\1\\0\\0\\0\\x80", 128), 0, -1, -1, 0) in ("EPERM", "EACCES"))
        """,
        "True\n",
    ),
    python(
        "other_calls_are_refused",
        _CALL
        + """
        names = {"bpf": (321, 0, 0, 0), "userfaultfd": (323, 0), "kexec": (246, 0, 0, 0, 0), "module": (313, 0, b"", 0), "reboot": (169, 1, 2, 3),
                 "swapon": (167, b"x", 0), "sethostname": (170, b"x", 1), "open_by_handle": (304, -100, 0, 0), "iopl": (172, 3), "acct": (163, 0)}
        print(*(f"{name}={call(*arguments)}" for name, arguments in names.items()))
        """,
        "bpf=EPERM userfaultfd=EPERM kexec=EPERM module=EPERM reboot=EPERM swapon=EPERM sethostname=EPERM open_by_handle=EPERM iopl=EPERM acct=EPERM\n",
    ),
    python(
        "unknown_calls_are_not_implemented",
        _CALL
        + """
        print(call(999), call(1000))
        """,
        "ENOSYS ENOSYS\n",
    ),
    python(
        "calls_with_fallbacks_say_not_implemented_or_work",
        _CALL
        + """
        print(call(435, 0, 0) in ("EINVAL", "ENOSYS"), call(437, -100, b".", ctypes.create_string_buffer(24), 24) in ("ENOSYS",) or "opened")
        print(call(439, -100, b".", 0, 0), call(436, 900, 1000, 0), call(324, 0, 0, 0) in ("ENOSYS", "EPERM") or "barrier", call(334, 0, 0, 0, 0))
        """,
        "True opened\n0 0 barrier EINVAL\n",
    ),
    python(
        "own_filter_of_system_calls",
        """
        import ctypes, os, struct
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 39) + struct.pack("HBBI", 6, 0, 0, 0x50063) + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
        buffer = ctypes.create_string_buffer(code)
        print(libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))), 0, 0))
        print(libc.syscall(39), ctypes.get_errno())
        """,
        "0\n-1 99\n",
    ),
    python(
        "own_rules_of_landlock",
        _CALL
        + """
        print(call(444, None, 0, 1) in ("ENOSYS", "EOPNOTSUPP") or call(444, None, 0, 1) >= 1)
        """,
        "True\n",
    ),
    python(
        "no_new_privileges_can_be_set",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        print(libc.prctl(38, 1, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0), libc.prctl(8, 1, 0, 0, 0) in (0, -1))
        """,
        "0 1 True\n",
    ),
    python(
        "personality_without_random_addresses",
        """
        import ctypes
        print(*(ctypes.CDLL(None).personality(ctypes.c_ulong(each)) for each in (0xFFFFFFFF, 0x0008, 0)))
        """,
        "0 0 8\n",
    ),
    python(
        "keys_cannot_be_added_to_the_kernel",
        _CALL
        + """
        print(call(248, b"user", b"x", b"y", 1, -3) in ("EPERM", "ENOSYS"))
        """,
        "True\n",
    ),
    python(
        "device_nodes_are_refused",
        """
        import os
        for mode, device in ((0o20600, os.makedev(1, 3)), (0o60600, os.makedev(7, 0))):
            try:
                os.mknod("n", mode, device)
            except PermissionError:
                print("refused")
        os.mknod("f", 0o10600); os.mknod("r"); print("pipe and file")
        """,
        "refused\nrefused\npipe and file\n",
    ),
    sh("kernel_log_is_refused", "dmesg >/dev/null 2>&1; echo $?", "1\n", needs=("dmesg",)),
    python(
        "memory_policies",
        _CALL
        + """
        import struct
        print(call(238, 0, None, 0), call(309, ctypes.byref(ctypes.c_uint()), ctypes.byref(ctypes.c_uint()), None))
        """,
        "0 0\n",
    ),
    python(
        "io_priority_of_the_process",
        _CALL
        + """
        print(call(251, 1, 0, (2 << 13) | 4), call(252, 1, 0) == (2 << 13) | 4)
        """,
        "0 True\n",
    ),
    c_program(
        "counter_of_time_stamps",
        """
        #include <stdio.h>
        #include <x86intrin.h>
        int main(void) { unsigned long long a = __rdtsc(), b = __rdtsc(); puts(b >= a ? "counts" : "back"); }
        """,
        "counts\n",
    ),
    bash(
        "traced_program_of_strace",
        # A call during which another process is reported has two lines; only the first has the parenthesis.
        "strace -f -o trace sh -c 'cat /dev/null; echo traced' && grep -c 'execve(' trace",
        "traced\n2\n",
        needs=("strace",),
    ),
    bash(
        "debugger_runs_a_program",
        """
        cat >m.c <<'END'
        #include <stdio.h>
        int main(void) {
            int value = 41;
            value++;
            printf("%d\\n", value);
            return 0;
        }
        END
        cc -g -o m m.c && gdb -q -nx -batch -ex 'break 4' -ex run -ex next -ex 'print value' ./m 2>/dev/null | grep '^[$]1'
        gdb -q -nx -batch -ex run -ex 'print $_exitcode' ./m 2>/dev/null | grep -E '^42|^[$]1'
        """.replace("\n        ", "\n"),
        "$1 = 42\n42\n$1 = 0\n",
        needs=("gdb", "cc"),
    ),
    bash(
        "debugger_attaches_to_a_child",
        "sleep 60 & gdb -q -nx -batch -p $! -ex 'info inferiors' 2>/dev/null | grep -c '^\\* 1  *process '; kill %1; wait 2>/dev/null",
        "1\n",
        needs=("gdb",),
    ),
)
PROBES = tuple(replace(probe, machine="x86_64") for probe in _PROBES)
