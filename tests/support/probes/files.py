"""Probes of names, links, permissions and times of files, and of directories."""

from support.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    sh("rename_over_a_file", "echo 1 >a; echo 2 >b; mv a b; cat b; ls", "1\nb\nprobe.sh\n"),
    sh("hard_link_counts", "echo x >a; ln a b; stat -c %h a b; rm a; cat b", "2\n2\nx\n"),
    sh(
        "symbolic_links",
        "echo x >a; ln -s a b; readlink b; cat b; ln -s nowhere c; test -e c || echo dangling",
        """\
        a
        x
        dangling
        """,
    ),
    python(
        "rename_exchanges_two_names",
        """
        import ctypes, os
        open("a", "w").write("a"); open("b", "w").write("b")
        assert ctypes.CDLL(None, use_errno=True).renameat2(-100, b"a", -100, b"b", 2) == 0, ctypes.get_errno()
        print(open("a").read(), open("b").read())
        """,
        "b a\n",
    ),
    python(
        "directory_is_replaced_by_rename",
        """
        import os
        os.mkdir("a"); open("a/x", "w").close(); os.mkdir("b")
        os.rename("a", "b")
        print(os.listdir("b"))
        try:
            os.mkdir("c"); os.rename("c", "b")
        except OSError as error:
            print(error.strerror)
        """,
        "['x']\nDirectory not empty\n",
    ),
    python(
        "inotify_on_own_files",
        """
        import ctypes, os, struct
        libc = ctypes.CDLL(None, use_errno=True)
        watcher = libc.inotify_init1(0)
        os.mkdir("watched")
        assert libc.inotify_add_watch(watcher, b"watched", 0x100 | 0x8 | 0x200) > 0, ctypes.get_errno()
        open("watched/f", "w").close()
        os.unlink("watched/f")
        events, masks = os.read(watcher, 4096), []
        while events:
            _, mask, _, size = struct.unpack_from("iIII", events)
            masks.append(hex(mask))
            events = events[16 + size:]
        print(masks)
        """,
        "['0x100', '0x8', '0x200']\n",
    ),
    python(
        "nameless_file_gets_a_name",
        """
        import os
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(file, b"nameless")
        os.link(f"/proc/self/fd/{file}", "named", src_dir_fd=os.open(".", os.O_RDONLY), follow_symlinks=True)
        print(open("named").read())
        """,
        "nameless\n",
    ),
    python(
        "long_and_unicode_names",
        """
        import os
        names = ["n" * 255, "\\u00e9t\\u00e9 \\u65e5\\u672c \\U0001f600", "a\\nb", " ", "-rf", "'\\"$`"]
        for name in names:
            open(name, "w").close()
        print(set(names) <= set(os.listdir()))
        try:
            open("n" * 256, "w")
        except OSError as error:
            print(error.strerror)
        """,
        "True\nFile name too long\n",
    ),
    python(
        "file_name_with_invalid_utf8",
        """
        import os
        open(b"\\xff\\xfe", "w").close()
        print(b"\\xff\\xfe" in os.listdir(b"."), "\\udcff\\udcfe" in os.listdir("."))
        """,
        "True True\n",
    ),
    python(
        "deep_directories",
        """
        import os
        start = os.getcwd()
        for _ in range(200):
            os.mkdir("d" * 50); os.chdir("d" * 50)
        open("f", "w").write("deep")
        print(len(os.getcwd()) > 10000 or len(os.getcwd()), open("f").read())
        """,
        "True deep\n",
    ),
    sh(
        "permissions_bind_the_owner",
        """
        umask 022; echo x >f; chmod 000 f; cat f 2>/dev/null || echo refused; stat -c %a f; chmod 644 f; cat f
        """,
        "refused\n0\nx\n",
    ),
    sh("umask_applies", "umask; umask 077; touch f; mkdir d; stat -c %a f d", "0022\n600\n700\n"),
    sh(
        "setgid_and_sticky_bits",
        "mkdir d; chmod 3775 d; stat -c %a d; touch f; chmod u+s f; stat -c %a f",
        "3775\n4644\n",
    ),
    sh(
        "times_are_set_and_kept",
        "touch -d '2001-02-03 04:05:06 UTC' f; stat -c '%X %Y' f; touch -a f; stat -c %Y f",
        """\
        981173106 981173106
        981173106
        """,
    ),
    python(
        "nanoseconds_of_times",
        """
        import os
        open("f", "w").close()
        os.utime("f", ns=(1_000_000_007, 2_000_000_009))
        print(os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns)
        """,
        "1000000007 2000000009\n",
    ),
    python(
        "extended_attributes_of_own_files",
        """
        import os
        open("f", "w").close()
        os.setxattr("f", "user.note", b"value")
        print(os.getxattr("f", "user.note"), os.listxattr("f"))
        """,
        "b'value' ['user.note']\n",
    ),
    sh(
        "fifo_connects_two_processes",
        "mkfifo p; (echo through >p) & cat p; wait; test -p p && echo fifo",
        "through\nfifo\n",
    ),
    sh(
        "temporary_directories_are_writable",
        """
        for d in /tmp /var/tmp /dev/shm "$HOME"; do
            f=$(mktemp -p "$d") && echo ok >"$f" && cat "$f" && rm "$f" || echo "no $d"
        done
        stat -c %a /tmp /var/tmp /dev/shm
        """,
        "ok\nok\nok\nok\n1777\n1777\n1777\n",
    ),
    sh(
        "programs_run_from_temporary_directories",
        """
        for d in /tmp /var/tmp "$HOME" .; do
            f=$(mktemp -p "$d"); printf '#!/bin/sh\\necho ran\\n' >"$f"; chmod +x "$f"; "$f"; rm "$f"
        done
        """,
        "ran\nran\nran\nran\n",
    ),
    bash("rename_between_temporary_and_work_directory", "f=$(mktemp); echo x >$f; mv $f here; cat here", "x\n"),
    python(
        "many_open_files",
        """
        files = [open("/dev/null") for _ in range(1000)]
        print(len(files))
        """,
        "1000\n",
    ),
    python(
        "many_small_files",
        """
        import os
        os.mkdir("many")
        for number in range(5000):
            open(f"many/{number}", "w").close()
        print(len(os.listdir("many")))
        """,
        "5000\n",
    ),
    python(
        "seventy_thousand_files",
        """
        import os
        os.mkdir("many")
        for number in range(70_000):
            os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
        print(len(os.listdir("many")))
        """,
        "70000\n",
    ),
    python(
        "statvfs_and_disk_usage",
        """
        import os, shutil
        found = shutil.disk_usage(".")
        print(found.total > 0, found.free > 0, os.statvfs(".").f_namemax, os.statvfs(".").f_ffree > 1000)
        """,
        "True True 255 True\n",
    ),
    python(
        "directory_descriptors",
        """
        import os
        os.mkdir("d")
        where = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
        os.close(os.open("f", os.O_CREAT, dir_fd=where)); os.rename("f", "g", src_dir_fd=where, dst_dir_fd=where)
        print(os.listdir(where)); os.fchdir(where); print(os.path.basename(os.getcwd()), os.access("g", os.R_OK))
        """,
        "['g']\nd True\n",
    ),
    python(
        "deleted_working_directory",
        """
        import os
        os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
        try:
            os.getcwd()
        except FileNotFoundError:
            print("gone")
        """,
        "gone\n",
    ),
)
