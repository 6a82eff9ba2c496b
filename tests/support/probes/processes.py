"""Probes of processes, their groups, their ends and their children."""

from support.probe import Probe, bash, c_program, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "fork_and_wait",
        """
        import os
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "7\n",
    ),
    c_program(
        "vfork_and_exec",
        """
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            int status;
            pid_t pid = vfork();
            if (pid == 0) { execl("/bin/sh", "sh", "-c", "exit 5", (char *)0); _exit(1); }
            waitpid(pid, &status, 0);
            printf("%d\\n", WEXITSTATUS(status));
        }
        """,
        "5\n",
    ),
    c_program(
        "clone_with_own_stack",
        """
        #define _GNU_SOURCE
        #include <sched.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        static int seen;
        static int child(void *argument) { seen = *(int *)argument; return 9; }
        int main(void) {
            int value = 42, status;
            char *stack = malloc(1 << 16);
            pid_t pid = clone(child, stack + (1 << 16), CLONE_VM | SIGCHLD, &value);
            waitpid(pid, &status, 0);
            printf("%d %d\\n", seen, WEXITSTATUS(status));
        }
        """,
        "42 9\n",
    ),
    python(
        "new_session_and_groups",
        """
        import os
        if os.fork() == 0:
            os.setsid()
            print(os.getsid(0) == os.getpid() == os.getpgrp())
            raise SystemExit
        os.wait()
        if (pid := os.fork()) == 0:
            os.setpgid(0, 0); os.kill(0, 15)
        os.waitpid(pid, 0); print("group ended")
        """,
        "True\ngroup ended\n",
    ),
    sh(
        "setsid_command",
        "setsid sh -c 'test $$ = $(ps -o sid= -p $$) && echo leader'; setsid -w sh -c 'exit 4'; echo $?",
        "leader\n4\n",
        needs=("setsid", "ps"),
    ),
    python(
        "daemon_is_adopted",
        """
        import os
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            import time
            mother = os.getppid()
            while os.getppid() == mother and mother != 1:
                time.sleep(0.01)
            os.write(write, b"adopted")
            os._exit(0)
        os.wait(); os.close(write)
        print(os.read(read, 20))
        """,
        "b'adopted'\n",
    ),
    python(
        "zombie_is_seen_and_reaped",
        """
        import os, signal
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        print(open(f"/proc/{pid}/stat").read().split()[2], os.waitpid(pid, 0)[0] == pid, os.path.exists(f"/proc/{pid}"))
        """,
        "Z True False\n",
    ),
    python(
        "waitid_reports_stops",
        """
        import os, signal
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGSTOP); os._exit(3)
        print(os.waitid(os.P_PID, pid, os.WSTOPPED).si_status == signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        print(os.waitid(os.P_PID, pid, os.WCONTINUED).si_status == signal.SIGCONT)
        print(os.waitid(os.P_PID, pid, os.WEXITED).si_status)
        """,
        "True\nTrue\n3\n",
    ),
    python(
        "subreaper_gets_orphans",
        """
        import ctypes, os
        print(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0))
        if os.fork() == 0:
            if os.fork():
                os._exit(1)
            while os.getppid() == 0:
                pass
            os._exit(2)
        print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
        """,
        "0\n[1, 2]\n",
    ),
    python(
        "process_and_thread_names",
        """
        import ctypes
        ctypes.CDLL(None).prctl(15, b"renamed", 0, 0, 0)
        print(open("/proc/self/comm").read().strip())
        open("/proc/self/comm", "w").write("again")
        print(open("/proc/self/status").readline().split()[1])
        """,
        "renamed\nagain\n",
    ),
    python(
        "death_signal_of_a_parent",
        """
        import ctypes, os, signal, time
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
                os.write(write, b"x"); os.close(write)
                time.sleep(60)
            os.read(read, 1); os._exit(0)
        os.waitpid(middle, 0); os.close(write)
        print(os.read(read, 1))
        """,
        "b''\n",
    ),
    python(
        "pidfd_waits_and_signals",
        """
        import os, select, signal, time
        pid = os.fork()
        if pid == 0:
            time.sleep(60); os._exit(0)
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        print(bool(select.select([handle], [], [], 10)[0]), os.waitid(os.P_PIDFD, handle, os.WEXITED).si_status)
        """,
        "True 15\n",
    ),
    python(
        "posix_spawn_with_file_actions",
        """
        import os
        actions = [(os.POSIX_SPAWN_OPEN, 1, "out", os.O_WRONLY | os.O_CREAT, 0o600)]
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "echo spawned"], os.environ, file_actions=actions, setsid=True)
        print(os.waitpid(pid, 0)[1], open("out").read().strip())
        """,
        "0 spawned\n",
    ),
    sh(
        "script_with_shebang",
        r"""
        printf '#!/usr/bin/env python3\nimport sys; print("shebang", *sys.argv[1:])\n' >s; chmod +x s; ./s a 'b c'
        """,
        "shebang a b c\n",
        needs=("python3",),
    ),
    sh(
        "script_without_execute_bit",
        "echo 'echo x' >s; ./s 2>/dev/null; echo $?; sh ./s; ./none 2>/dev/null; echo $?",
        "126\nx\n127\n",
    ),
    python(
        "own_executable_starts_again",
        """
        import os, sys
        if len(sys.argv) > 1:
            print("again"); raise SystemExit
        print(os.path.samefile(os.readlink("/proc/self/exe"), "/proc/self/exe"), flush=True)
        os.execv("/proc/self/exe", [sys.executable, __file__, "again"])
        """,
        "True\nagain\n",
    ),
    sh(
        "nice_and_renice",
        "b=$(nice); test $(nice -n 5 nice) = $((b > 14 ? 19 : b + 5)) && echo raised; nice -n 2 sh -c 'renice -n 19 $$ >/dev/null; nice'; test $(nice -n -5 nice 2>/dev/null) = $b && echo same",
        "raised\n19\nsame\n",
        needs=("renice",),
    ),
    python(
        "own_affinity",
        """
        import os
        cores = os.sched_getaffinity(0)
        one = {min(cores)}
        os.sched_setaffinity(0, one)
        print(os.sched_getaffinity(0) == one)
        os.sched_setaffinity(0, cores)
        print(os.sched_getaffinity(0) == cores)
        """,
        "True\nTrue\n",
    ),
    python(
        "scheduling_policies",
        """
        import os
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        print(os.sched_getscheduler(0) == os.SCHED_BATCH, os.sched_rr_get_interval(0) >= 0)
        os.sched_yield()
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            print("refused")
        """,
        "True True\nrefused\n",
    ),
    python(
        "limits_of_a_child",
        """
        import os, resource
        pid = os.fork()
        if pid == 0:
            os.read(0, 1)
            os.pause() if hasattr(os, "pause") else __import__("signal").pause()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (50, 60))
        print(resource.prlimit(pid, resource.RLIMIT_NOFILE))
        os.kill(pid, 9); os.wait()
        """,
        "(50, 60)\n",
    ),
    python(
        "parent_traces_its_child",
        """
        import ctypes, os, signal
        libc = ctypes.CDLL(None, use_errno=True)
        pid = os.fork()
        if pid == 0:
            if libc.ptrace(0, 0, 0, 0) != 0:
                os._exit(9)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(4)
        status = os.waitpid(pid, 0)[1]
        print(os.WIFSTOPPED(status))
        libc.ptrace(7, pid, 0, 0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "True\n4\n",
    ),
    python(
        "parent_attaches_to_its_child",
        """
        import ctypes, os, signal, time
        libc = ctypes.CDLL(None, use_errno=True)
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        if libc.ptrace(16, pid, 0, 0) == 0:
            print(os.WIFSTOPPED(os.waitpid(pid, 0)[1]), libc.ptrace(17, pid, 0, 0))
        os.kill(pid, 9); os.wait()
        """,
        "True 0\n",
    ),
    python(
        "memory_of_a_child_is_read",
        """
        import ctypes, os, time
        libc = ctypes.CDLL(None, use_errno=True)
        text = ctypes.create_string_buffer(b"shared secret")
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        target = ctypes.create_string_buffer(13)
        class Part(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
        here, there = Part(ctypes.addressof(target), 13), Part(ctypes.addressof(text), 13)
        print(libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0), target.raw)
        os.kill(pid, 9); os.wait()
        """,
        "13 b'shared secret'\n",
    ),
    sh(
        "exit_codes_of_signals",
        "sh -c 'kill -9 $$'; echo $?; sh -c 'kill -SEGV $$'; echo $?; sh -c 'exit 300'; echo $?",
        "137\n139\n44\n",
    ),
    bash(
        "jobs_and_wait",
        """
        (exit 3) & first=$!; (exit 4) & second=$!
        wait $first; echo $?; wait $second; echo $?
        sleep 60 & kill %1; wait %1 2>/dev/null; echo $?
        """,
        "3\n4\n143\n",
    ),
    sh("background_and_nohup", "nohup sh -c 'echo kept' >out 2>/dev/null & wait; cat out", "kept\n", needs=("nohup",)),
    sh(
        "timeout_ends_a_command",
        "timeout 0.2 sleep 10; echo $?; timeout -s KILL 0.2 sleep 10; echo $?; timeout 9 true; echo $?",
        "124\n137\n0\n",
        needs=("timeout",),
    ),
    sh(
        "children_are_listed_by_ps_and_pgrep",
        "sleep 77 & pgrep -x sleep >/dev/null && echo found; ps -o args= -p $!; pkill -x sleep; wait",
        "found\nsleep 77\n",
        needs=("ps", "pgrep"),
    ),
    python(
        "two_hundred_children",
        """
        import os
        pids = [os.fork() or os._exit(0) for _ in range(200)]
        print(sum(os.waitpid(pid, 0)[1] == 0 for pid in pids))
        """,
        "200\n",
    ),
    python(
        "arguments_of_100_kib",
        """
        import subprocess
        print(subprocess.run(["sh", "-c", 'echo ${#1}', "-", "x" * 100_000], capture_output=True, text=True).stdout.strip())
        many = ["y" * 1000] * 1500
        print(subprocess.run(["sh", "-c", "echo $#", "-", *many], capture_output=True, text=True).stdout.strip())
        """,
        "100000\n1500\n",
    ),
    python(
        "pid_1_exists_and_own_pid_is_small",
        """
        import os
        print(os.path.exists("/proc/1/stat"), os.getpid() < 100_000, len([p for p in os.listdir("/proc") if p.isdigit()]) < 50)
        """,
        "True True True\n",
    ),
    python(
        "usage_of_children",
        """
        import os, resource, subprocess
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"])
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(found.ru_utime + found.ru_stime > 0, found.ru_maxrss > 500, os.times().children_user >= 0)
        """,
        "True True True\n",
    ),
)
