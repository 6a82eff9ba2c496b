"""Probes of pseudo-terminals and of programs that look for a terminal."""

from support.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "pair_of_terminals",
        """
        import os, pty, tty
        master, slave = pty.openpty()
        tty.setraw(slave)
        os.write(slave, b"out"); print(os.read(master, 10))
        os.write(master, b"in"); print(os.read(slave, 10), os.isatty(slave))
        """,
        "b'out'\nb'in' True\n",
    ),
    python(
        "name_of_a_terminal",
        """
        import os, pty
        master, slave = pty.openpty()
        name = os.ttyname(slave)
        print(name.startswith("/dev/pts/"), os.path.exists(name), os.stat(name).st_uid == os.getuid(), os.ptsname(master) == name
              if hasattr(os, "ptsname") else True)
        """,
        "True True True True\n",
    ),
    python(
        "child_with_a_terminal",
        """
        import os, pty
        pid, master = pty.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", "test -t 0 && test -t 1 && echo terminal; tty | cut -c1-9"])
        output = b""
        try:
            while chunk := os.read(master, 1000):
                output += chunk
        except OSError:
            pass
        print(output, os.waitpid(pid, 0)[1])
        """,
        "b'terminal\\r\\n/dev/pts/\\r\\n' 0\n",
    ),
    python(
        "spawned_program_sees_a_terminal",
        """
        import os, pty
        print(pty.spawn(["sh", "-c", "test -t 1 && exit 3"]))
        """,
        "768\n",
    ),
    sh(
        "script_command",
        "script -qec 'tty | cut -c1-9; test -t 1 && echo terminal; exit 6' /dev/null; echo $?",
        "/dev/pts/\r\nterminal\r\n6\n",
        needs=("script",),
    ),
    sh(
        "size_of_a_terminal",
        "script -qec 'stty rows 33 cols 99; stty size; tput cols 2>/dev/null' /dev/null | head -1",
        "33 99\r\n",
        needs=("script", "stty"),
    ),
    python(
        "window_size_and_its_signal",
        """
        import fcntl, os, pty, struct, termios
        pid, master = pty.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"])
        os.read(master, 100)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        print(os.read(master, 100)); os.waitpid(pid, 0)
        """,
        "b'40 120\\r\\n'\n",
    ),
    python(
        "interrupt_key_of_a_terminal",
        """
        import os, pty
        pid, master = pty.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", "echo ready; exec sleep 60"])
        os.read(master, 100)
        os.write(master, b"\\x03")
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        "-2\n",
    ),
    python(
        "terminal_of_the_process",
        """
        import os, pty
        pid, master = pty.fork()
        if pid == 0:
            with open("/dev/tty", "w") as terminal:
                terminal.write("direct")
            os._exit(0)
        print(os.read(master, 100)); os.waitpid(pid, 0)
        """,
        "b'direct'\n",
    ),
    sh(
        "no_terminal_by_default",
        "tty; test -t 1 || echo pipe; (: </dev/tty) 2>/dev/null || echo none; stty size 2>/dev/null || echo no",
        "not a tty\npipe\nnone\nno\n",
    ),
    sh(
        "tmux_session",
        """
        export TMUX_TMPDIR=$PWD
        tmux -f /dev/null new-session -d -s probe -x 100 -y 20 'echo in tmux >out; tmux wait-for -S done; sleep 60' && tmux wait-for done
        cat out; tmux kill-server 2>/dev/null || true
        """,
        "in tmux\n",
        needs=("tmux",),
        env={"LANG": "C.UTF-8"},
    ),
    python(
        "sixteen_terminals",
        """
        import pty
        print(len({pty.openpty()[1] for _ in range(16)}))
        """,
        "16\n",
    ),
    python(
        "line_editing_of_a_terminal",
        """
        import os, pty
        pid, master = pty.fork()
        if pid == 0:
            os.execvp("sh", ["sh", "-c", "read line; echo got $line"])
        os.write(master, b"abx\\x7fc\\n")
        output = b""
        try:
            while chunk := os.read(master, 1000):
                output += chunk
        except OSError:
            pass
        print(output.splitlines()[-1]); os.waitpid(pid, 0)
        """,
        "b'got abc'\n",
    ),
    bash(
        "interactive_shell_in_script",
        "script -qec 'bash --norc --noprofile -i -c \"echo jobs on; set -o | grep monitor\"' /dev/null",
        "jobs on\r\nmonitor        \ton\r\n",
        needs=("script",),
    ),
    python(
        "getpass_and_curses_need_no_terminal",
        """
        import curses, warnings
        try:
            curses.setupterm("xterm")
            print(curses.tigetnum("colors"))
        except curses.error as error:
            print("none")
        """,
        "8\n",
    ),
)
