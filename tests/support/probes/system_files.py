"""Probes of `/proc`, `/sys` and `/dev`."""

from support.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    sh(
        "devices_behave",
        """
        echo x >/dev/null; head -c 4 /dev/zero | od -An -tx1; test "$(head -c 8 /dev/urandom | wc -c)" = 8 && echo random
        test "$(head -c 8 /dev/random | wc -c)" = 8 && echo random; echo x >/dev/full 2>/dev/null || echo full
        """,
        " 00 00 00 00\nrandom\nrandom\nfull\n",
    ),
    sh(
        "usual_devices_exist",
        "for p in /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/fd /dev/stdin /dev/stdout /dev/stderr /dev/shm; do test -e $p || echo no $p; done",
        "",
    ),
    sh("devices_of_terminals_exist", "for p in /dev/tty /dev/ptmx /dev/pts; do test -e $p || echo no $p; done", ""),
    sh("mount_of_message_queues_exists", "for p in /dev/mqueue; do test -e $p || echo no $p; done", ""),
    sh(
        "types_and_modes_of_devices",
        "stat -Lc '%F %a' /dev/null /dev/zero /dev/urandom; ls -d /dev/sd* /dev/vd* /dev/mem /dev/kmsg 2>/dev/null",
        "character special file 666\n" * 3,
        exit_code=2,
    ),
    sh(
        "standard_streams_by_name",
        "echo out >/dev/stdout; echo err >/dev/stderr; echo in | cat /dev/stdin; echo three >/dev/fd/1",
        "out\nin\nthree\n",
    ),
    bash(
        "process_substitution",
        "diff <(echo a) <(echo b); cat < <(echo c); echo d > >(cat); wait",
        "1c1\n< a\n---\n> b\nc\nd\n",
    ),
    bash(
        "descriptors_above_nine", "exec 10>f; echo ten >&10; exec 10>&-; cat f; exec {any}<f; cat <&$any", "ten\nten\n"
    ),
    python(
        "streams_are_opened_again_by_name",
        """
        import os
        open("/dev/stdout", "w").write("again\\n")
        open("/proc/self/fd/1", "w").write("once more\\n")
        print(os.path.exists("/dev/fd/0"), open("/dev/stdin").read() == "")
        """,
        "again\nonce more\nTrue True\n",
    ),
    python(
        "processors_are_listed",
        """
        import os, re
        text = open("/proc/cpuinfo").read()
        print(len(re.findall(r"^processor", text, re.M)) >= len(os.sched_getaffinity(0)), "flags" in text or "Features" in text)
        """,
        "True True\n",
    ),
    python(
        "memory_is_listed",
        """
        fields = dict(line.split(":") for line in open("/proc/meminfo"))
        print({"MemTotal", "MemFree", "MemAvailable", "SwapTotal"} <= fields.keys(), int(fields["MemTotal"].split()[0]) > 100_000)
        """,
        "True True\n",
    ),
    python(
        "files_of_the_system_in_proc",
        """
        for name in ("stat", "mounts", "uptime", "loadavg", "version", "filesystems", "vmstat", "cmdline", "swaps", "diskstats",
                     "partitions", "devices", "interrupts", "self/mountinfo", "cgroups", "sys/kernel/hostname", "sys/kernel/pid_max",
                     "sys/vm/overcommit_memory", "sys/fs/file-max", "sys/kernel/random/uuid", "sys/kernel/random/boot_id", "sys/kernel/osrelease",
                     "sys/vm/max_map_count", "sys/kernel/threads-max", "sys/net/ipv4/ip_local_port_range", "sys/kernel/cap_last_cap"):
            try:
                if not open("/proc/" + name).read() and name != "swaps":
                    print(name, "empty")
            except OSError as error:
                print(name, error.strerror)
        """,
        "",
    ),
    python(
        "files_of_the_process_in_proc",
        """
        import os
        for name in ("stat", "statm", "status", "maps", "smaps", "smaps_rollup", "limits", "io", "cgroup", "cmdline", "environ", "oom_score",
                     "oom_score_adj", "comm", "wchan", "sched", "schedstat", "auxv", "mountinfo", "mountstats", "personality", "syscall",
                     "uid_map", "gid_map", "setgroups", "numa_maps", "loginuid", "coredump_filter", "timerslack_ns"):
            try:
                open("/proc/self/" + name, "rb").read()
            except OSError as error:
                print(name, error.strerror)
        print(os.readlink("/proc/self/cwd") == os.getcwd(), os.readlink("/proc/self/root"), len(os.listdir("/proc/self/fd")) >= 4)
        print(len(os.listdir("/proc/self/ns")) >= 7, os.listdir("/proc/self/task") == [str(os.getpid())])
        """,
        "True / True\nTrue True\n",
    ),
    python(
        "own_memory_is_read_through_proc",
        """
        import ctypes
        text = ctypes.create_string_buffer(b"mine")
        with open("/proc/self/mem", "r+b", 0) as memory:
            memory.seek(ctypes.addressof(text)); print(memory.read(4))
            memory.seek(ctypes.addressof(text)); memory.write(b"your")
        print(text.value, any("[heap]" in line for line in open("/proc/self/maps")))
        """,
        "b'mine'\nb'your' True\n",
    ),
    python(
        "own_score_of_the_oom_killer_rises",
        """
        first = int(open("/proc/self/oom_score_adj").read())
        open("/proc/self/oom_score_adj", "w").write("1000")
        print(open("/proc/self/oom_score_adj").read().strip())
        """,
        "1000\n",
    ),
    python(
        "own_environment_and_arguments_in_proc",
        """
        import os, sys
        print(b"HOME=" in open("/proc/self/environ", "rb").read(), open("/proc/self/cmdline", "rb").read().split(b"\\0")[1:2])
        """,
        "True [b'main.py']\n",
    ),
    python(
        "mount_of_root_and_proc_are_listed",
        """
        import os
        found = {line.split()[1]: line.split()[2] for line in open("/proc/self/mounts")}
        print(found.get("/proc"), "/" in found, found.get("/dev/shm"), os.path.ismount("/proc"), os.path.ismount("/"))
        """,
        "proc True tmpfs True True\n",
    ),
    sh("mount_of_terminals_is_listed", "grep -c '^devpts /dev/pts devpts' /proc/self/mounts", "1\n"),
    sh(
        "df_and_mount_work",
        "df . | wc -l; df -h / >/dev/null && echo root; mount | grep -c ' on / '",
        "2\nroot\n1\n",
        needs=("mount",),
    ),
    sh(
        "free_uptime_and_top",
        "free -m | grep -c Mem; uptime >/dev/null && echo up; top -b -n 1 | grep -c '%Cpu'; vmstat >/dev/null && echo vm",
        "1\nup\n1\nvm\n",
        needs=("free", "uptime", "top", "vmstat"),
    ),
    sh(
        "nproc_and_lscpu",
        "test $(nproc) -ge 1 && echo some; lscpu | grep -c '^CPU(s):'; getconf _NPROCESSORS_ONLN | grep -c '^[1-9]'",
        "some\n1\n1\n",
        needs=("nproc", "lscpu", "getconf"),
    ),
    python(
        "processors_in_sys",
        """
        import os
        base = "/sys/devices/system/cpu/"
        print(*(bool(open(base + n).read().strip()) for n in ("online", "possible", "present")), os.path.isdir(base + "cpu0"))
        """,
        "True True True True\n",
    ),
    sh(
        "interfaces_in_sys",
        "for p in /sys/class/net/lo/address /sys/class/net/lo/mtu; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "huge_pages_in_sys",
        "for p in /sys/kernel/mm/transparent_hugepage/enabled; do test -e $p || echo no $p; done",
        "",
    ),
    sh("memory_nodes_in_sys", "for p in /sys/devices/system/node/node0/cpulist; do test -e $p || echo no $p; done", ""),
    sh(
        "topology_of_processors_in_sys",
        "for p in /sys/devices/system/cpu/cpu0/topology/core_id /sys/devices/system/cpu/cpu0/topology/thread_siblings_list; do test -e $p || echo no $p; done",
        "",
    ),
    sh("cgroups_in_sys", "for p in /sys/fs/cgroup; do test -e $p || echo no $p; done", ""),
    sh(
        "directories_of_the_kernel_are_read_only",
        "for d in /dev /proc /sys /proc/sys; do (: >$d/probe) 2>/dev/null && echo wrote $d; done; echo end",
        "end\n",
    ),
    sh(
        "classes_of_devices_in_sys",
        "for p in /sys/class /sys/devices/virtual; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "other_parts_of_sys",
        "for p in /sys/block /sys/bus /sys/module; do test -e $p || echo no $p; done",
        "",
    ),
    python(
        "own_memory_limit_is_found_in_the_cgroup",
        """
        import os
        paths = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
        print(any(os.path.exists(path) for path in paths), len(open("/proc/self/cgroup").read()) > 0)
        """,
        "True True\n",
    ),
    sh(
        "writes_to_proc_and_sys_are_refused",
        """
        for f in /proc/sys/kernel/hostname /proc/sysrq-trigger /proc/sys/vm/overcommit_memory /sys/kernel/mm/transparent_hugepage/enabled; do
            (echo 1 >$f) 2>/dev/null && echo wrote $f
        done; cat /proc/kcore 2>/dev/null | head -c 1; cat /proc/kmsg 2>/dev/null | head -c 1; echo end
        """,
        "end\n",
    ),
    sh(
        "system_directories_are_read_only",
        """
        for d in / /etc /usr /usr/bin /bin /lib /root; do (: >$d/probe) 2>/dev/null && echo wrote $d; done; echo end
        """,
        "end\n",
    ),
    sh(
        "directories_of_the_system_exist",
        "for p in /bin /dev /etc /lib /proc /root /sbin /sys /tmp /usr /usr/bin /usr/lib /usr/local/bin /usr/share; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "directories_of_variable_files_exist",
        "for p in /var /var/tmp /var/log /var/cache /var/lib /run /run/lock; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "directories_of_users_and_packages_exist",
        "for p in /home /mnt /opt /srv; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "files_of_users_and_libraries_in_etc",
        "for p in /etc/passwd /etc/group /etc/os-release /etc/debian_version /etc/ld.so.cache /etc/nsswitch.conf; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "files_of_the_network_in_etc",
        "for p in /etc/hosts /etc/hostname /etc/resolv.conf; do test -e $p || echo no $p; done",
        "",
    ),
    sh(
        "files_of_logins_in_etc",
        "for p in /etc/shells /etc/login.defs /etc/profile; do test -e $p || echo no $p; done",
        "",
    ),
    python(
        "machine_and_version",
        """
        import os, platform
        print(os.uname().sysname, platform.machine() == os.uname().machine, platform.libc_ver()[0], bool(platform.freedesktop_os_release()["ID"]))
        print(platform.node() == os.uname().nodename == open("/proc/sys/kernel/hostname").read().strip())
        """,
        "Linux True glibc True\nTrue\n",
    ),
)
