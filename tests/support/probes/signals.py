"""Probes of signals and timers."""

from support.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "handlers_run",
        """
        import os, signal
        seen = []
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGRTMIN + 3):
            signal.signal(number, lambda number, frame: seen.append(number))
            os.kill(os.getpid(), number)
        print(seen == [10, 15, 2, 37])
        """,
        "True\n",
    ),
    python(
        "signals_at_the_start_are_default",
        """
        import signal
        odd = [s.name for s in signal.valid_signals() if isinstance(s, signal.Signals)
               and signal.getsignal(s) not in (signal.SIG_DFL, None) and s not in (2, 13, 25)]
        print(odd, signal.pthread_sigmask(signal.SIG_BLOCK, []))
        fields = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
        print(fields["SigBlk"], fields["SigPnd"])
        """,
        "[] set()\n0000000000000000 0000000000000000\n",
    ),
    sh(
        "broken_pipe_ends_the_writer",
        "(yes; echo $? >code) 2>/dev/null | head -1; sleep 0.1; cat code",
        "y\n141\n",
        needs=("yes",),
    ),
    sh("trap_and_kill", "trap 'echo term' TERM; trap 'echo bye' EXIT; kill $$; echo after", "term\nafter\nbye\n"),
    bash("trap_of_a_wait", "trap 'echo usr' USR1; (sleep 0.1; kill -USR1 $$) & wait; echo $?", "usr\n138\n"),
    python(
        "alarm_and_interval_timer",
        """
        import signal, time
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        while len(seen) < 3:
            signal.pause()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.alarm(1); print(signal.alarm(0), len(seen) >= 3)
        """,
        "1 True\n",
    ),
    python(
        "timer_of_cpu_time",
        """
        import signal
        class Ended(Exception): ...
        def end(*_): raise Ended
        signal.signal(signal.SIGVTALRM, end)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)
        try:
            n = 0
            while True: n += 1
        except Ended:
            print("ended")
        """,
        "ended\n",
    ),
    python(
        "alarm_ends_a_program",
        """
        import signal, subprocess
        print(subprocess.run(["python3", "-c", "import signal; signal.setitimer(0, 0.05); signal.pause()"]).returncode)
        """,
        "-14\n",
    ),
    python(
        "sigwait_and_queued_values",
        """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        os.kill(os.getpid(), signal.SIGUSR2)
        print(signal.sigpending() == {signal.SIGUSR2}, signal.sigwait([signal.SIGUSR2]).name)
        print(signal.sigtimedwait([signal.SIGUSR2], 0))
        """,
        "True SIGUSR2\nNone\n",
    ),
    python(
        "timerfd_eventfd_and_signalfd",
        """
        import ctypes, os, select, signal, struct
        libc = ctypes.CDLL(None, use_errno=True)
        event = os.eventfd(3)
        print(os.eventfd_read(event))
        timer = libc.timerfd_create(1, 0)
        libc.timerfd_settime(timer, 0, struct.pack("qqqq", 0, 0, 0, 1_000_000), None)
        print(struct.unpack("Q", os.read(timer, 8))[0])
        mask = struct.pack("Q", 1 << 9) + bytes(120)
        signal.pthread_sigmask(signal.SIG_BLOCK, [10])
        signals = libc.signalfd(-1, mask, 0)
        os.kill(os.getpid(), 10)
        print(struct.unpack_from("I", os.read(signals, 128))[0])
        """,
        "3\n1\n10\n",
    ),
    python(
        "posix_timer_sends_a_signal",
        """
        import ctypes, signal, struct
        libc = ctypes.CDLL(None, use_errno=True)
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        timer = ctypes.c_void_p()
        print(libc.timer_create(1, None, ctypes.byref(timer)))
        print(libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 0, 0, 50_000_000), None))
        while not seen:
            signal.sigtimedwait([], 0.01)
        print("fired")
        """,
        "0\n0\nfired\n",
    ),
    python(
        "clocks_move",
        """
        import time
        for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_PROCESS_CPUTIME_ID,
                      time.CLOCK_THREAD_CPUTIME_ID, time.CLOCK_TAI, time.CLOCK_MONOTONIC_RAW):
            first = time.clock_gettime_ns(clock)
            sum(range(2000))
            print(time.clock_gettime_ns(clock) > first, end=" ")
        print(time.time() > 1.7e9, time.tzname)
        """,
        "True True True True True True True True ('UTC', 'UTC')\n",
    ),
    python(
        "clock_cannot_be_set",
        """
        import time
        try:
            time.clock_settime(time.CLOCK_REALTIME, time.time())
        except PermissionError:
            print("refused")
        """,
        "refused\n",
    ),
    python(
        "interrupted_sleep_continues",
        """
        import os, signal, threading, time
        signal.signal(signal.SIGUSR1, lambda *_: None)
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        begin = time.monotonic()
        time.sleep(0.1)
        print(time.monotonic() - begin >= 0.1)
        """,
        "True\n",
    ),
    python(
        "faulthandler_and_abort",
        """
        import subprocess, sys
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", "import os; os.abort()"], capture_output=True, text=True)
        print(done.returncode, "Fatal Python error: Aborted" in done.stderr)
        """,
        "-6 True\n",
    ),
    sh(
        "time_zone_of_a_variable",
        "TZ=Asia/Tokyo date -d @0 +%H:%M; TZ=XYZ-3 date -d @0 +%H; date -u -d @0 +%Y",
        "09:00\n03\n1970\n",
    ),
)
