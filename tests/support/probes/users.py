"""Probes of users, groups, home directories, variables and locales."""

from support.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    sh(
        "whoami_names_a_user",
        'test -n "$(whoami)" && echo named; id -un >/dev/null && echo named; id -gn >/dev/null && echo group',
        "named\nnamed\ngroup\n",
    ),
    sh(
        "user_is_ordinary",
        "test $(id -u) -ne 0 && echo ordinary; test $(id -u) = 1000 && echo 1000",
        "ordinary\n1000\n",
    ),
    python(
        "user_is_in_passwd",
        """
        import getpass, grp, os, pwd
        entry = pwd.getpwuid(os.getuid())
        print(entry.pw_name == getpass.getuser(), bool(entry.pw_shell), pwd.getpwnam(entry.pw_name).pw_uid == os.getuid())
        print(bool(grp.getgrgid(os.getgid()).gr_name), pwd.getpwnam("root").pw_uid, pwd.getpwnam("nobody").pw_uid)
        """,
        "True True True\nTrue 0 65534\n",
    ),
    python(
        "home_is_that_of_passwd_and_writable",
        """
        import os, pathlib, pwd
        home = pathlib.Path.home()
        print(pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) == home, os.access(home, os.W_OK), os.path.expanduser("~") == str(home))
        (home / ".probe").write_text("x"); print((home / ".probe").read_text()); (home / ".probe").unlink()
        """,
        "True True True\nx\n",
    ),
    bash("tilde_expands", 'test ~ = "$HOME" && echo home; cd && test "$PWD" = "$HOME" && echo there', "home\nthere\n"),
    bash(
        "home_of_root_is_named",
        "echo ~root; getent passwd root | cut -d: -f1,3,4,6",
        "/root\nroot:0:0:/root\n",
        needs=("getent",),
    ),
    python(
        "caches_of_home",
        """
        import os, pathlib
        for name in (".cache/a", ".config/b", ".local/share/c", ".npm", ".m2"):
            pathlib.Path.home().joinpath(name).mkdir(parents=True, exist_ok=True)
        print("made")
        """,
        "made\n",
    ),
    sh(
        "owner_of_own_files",
        'touch f; test "$(stat -c %u f)" = "$(id -u)" && echo mine; test "$(stat -c %U f)" = "$(whoami)" && echo named',
        "mine\nnamed\n",
    ),
    sh("system_files_belong_to_root", "stat -c '%u %g' /etc/passwd /usr/bin / /tmp", "0 0\n" * 4),
    sh(
        "owner_cannot_be_changed",
        "touch f; chown 0 f 2>/dev/null || echo refused; chgrp $(id -g) f && echo group; chmod 4755 f && echo mode",
        "refused\ngroup\nmode\n",
    ),
    sh(
        "root_is_out_of_reach",
        "sudo -n true 2>/dev/null; test $? -ne 0 && echo refused; (su -c true </dev/null) 2>/dev/null || echo refused",
        "refused\nrefused\n",
    ),
    python(
        "user_cannot_change",
        """
        import os
        for change in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setresuid(0, 0, 0)):
            try:
                change(); print("changed")
            except OSError as error:
                print(error.strerror)
        os.setuid(os.getuid()); print(os.getresuid() == (os.getuid(),) * 3)
        """,
        "Operation not permitted\n" * 3 + "True\n",
    ),
    python(
        "group_cannot_change",
        """
        import os
        for change in (lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setgroups([])):
            try:
                change(); print("changed")
            except OSError as error:
                print(error.strerror)
        """,
        "Operation not permitted\n" * 3,
    ),
    python(
        "capabilities_are_empty",
        """
        fields = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines())
        print(int(fields["CapEff"], 16), int(fields["CapPrm"], 16))
        """,
        "0 0\n",
    ),
    python(
        "groups_of_the_user",
        """
        import grp, os
        print(all(grp.getgrgid(each).gr_name for each in {os.getgid(), *os.getgroups()}))
        """,
        "True\n",
    ),
    sh(
        "usual_variables",
        'for v in PATH HOME PWD; do eval test -n \\"\\$$v\\" || echo no $v; done; case :$PATH: in *:/usr/bin:*) echo path;; esac',
        "path\n",
    ),
    sh(
        "path_holds_the_usual_directories",
        "for d in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do case :$PATH: in *:$d:*) ;; *) echo no $d;; esac; done",
        "",
    ),
    python(
        "text_is_utf8",
        """
        import locale, sys
        print(sys.stdout.encoding, sys.getfilesystemencoding(), locale.getpreferredencoding(), "\\u00e9\\u65e5\\U0001f600")
        """,
        "utf-8 utf-8 UTF-8 \u00e9\u65e5\U0001f600\n",
    ),
    sh(
        "locales_exist",
        "locale -a | grep -ci '^c.utf-\\?8$'; LC_ALL=C.UTF-8 locale charmap; LC_ALL=C locale charmap",
        "1\nUTF-8\nANSI_X3.4-1968\n",
        needs=("locale",),
    ),
    python(
        "locale_is_set",
        """
        import locale
        print(locale.setlocale(locale.LC_ALL, "C.UTF-8"), locale.setlocale(locale.LC_ALL, "C"), locale.localeconv()["decimal_point"])
        try:
            locale.setlocale(locale.LC_ALL, "xx_XX")
        except locale.Error:
            print("unknown")
        """,
        "C.UTF-8 C .\nunknown\n",
    ),
    sh(
        "sorting_and_classes_of_characters",
        "printf 'b\\nA\\na\\nB\\n' | LC_ALL=C sort | tr -d '\\n'; echo; printf '\\303\\251' | LC_ALL=C.UTF-8 wc -m",
        "ABab\n1\n",
    ),
    sh(
        "getent_and_hosts",
        "getent passwd root | cut -d: -f3; getent hosts localhost >/dev/null && echo hosts; getent group root | cut -d: -f3; hostname >/dev/null && echo name",
        "0\nhosts\n0\nname\n",
        needs=("getent", "hostname"),
    ),
    python(
        "login_needs_no_terminal",
        """
        import os
        try:
            os.getlogin()
        except OSError:
            print("none")
        os.environ["LOGNAME"] = "x"; import getpass; print(getpass.getuser())
        """,
        "none\nx\n",
    ),
)
