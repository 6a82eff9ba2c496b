"""Probes of files and directories in the working directory."""

from support.probes.probe import Probe, bash, python, sh

PROBES: tuple[Probe, ...] = (
    sh("rename_over_a_file", "echo 1 >a; echo 2 >b; mv a b; cat b; ls", "1\nb\nprobe.sh\n"),
    sh("hard_link_counts", "echo x >a; ln a b; stat -c %h a b; rm a; cat b", "2\n2\nx\n"),
    sh("symbolic_links", "echo x >a; ln -s a b; readlink b; cat b; ln -s nowhere c; test -e c || echo dangling", """\
        a
        x
        dangling
        """),
    python("rename_exchanges_two_names", """
        import ctypes, os
        open("a", "w").write("a"); open("b", "w").write("b")
        assert ctypes.CDLL(None, use_errno=True).renameat2(-100, b"a", -100, b"b", 2) == 0, ctypes.get_errno()
        print(open("a").read(), open("b").read())
        """, "b a\n"),
    python("directory_is_replaced_by_rename", """
        import os
        os.mkdir("a"); open("a/x", "w").close(); os.mkdir("b")
        os.rename("a", "b")
        print(os.listdir("b"))
        try:
            os.mkdir("c"); os.rename("c", "b")
        except OSError as error:
            print(error.strerror)
        """, "['x']\nDirectory not empty\n"),
    python("sparse_file_of_1_gib", """
        import os
        with open("sparse", "wb") as file:
            os.ftruncate(file.fileno(), 1 << 30)
            file.seek((1 << 30) - 1)
            file.write(b"x")
        found = os.stat("sparse")
        print(found.st_size, found.st_blocks * 512 < 1 << 20)
        """, "1073741824 True\n"),
    python("sparse_file_has_holes", """
        import os
        with open("sparse", "wb") as file:
            file.seek(8 << 20)
            file.write(b"x")
        with open("sparse", "rb") as file:
            print(os.lseek(file.fileno(), 0, os.SEEK_DATA) > 0, os.lseek(file.fileno(), 0, os.SEEK_HOLE))
        """, "True 0\n"),
    sh("truncate_and_dd_seek", "truncate -s 300M t; dd if=/dev/zero of=t bs=1 count=1 seek=400M 2>/dev/null; stat -c %s t",
       "419430401\n"),
    python("shared_mapping_of_a_file", """
        import mmap, os
        with open("m", "wb+") as file:
            file.truncate(1 << 20)
            memory = mmap.mmap(file.fileno(), 0)
            if os.fork() == 0:
                memory[5:10] = b"child"
                memory.flush()
                os._exit(0)
            os.wait()
            print(memory[5:10], os.pread(file.fileno(), 5, 5))
        """, "b'child' b'child'\n"),
    python("private_mapping_of_a_file", """
        import mmap
        open("m", "wb").write(b"a" * 4096)
        with open("m", "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            memory[0:1] = b"b"
        print(memory[0:2], open("m", "rb").read(1))
        """, "b'ba' b'a'\n"),
    python("executable_mapping", """
        import ctypes, mmap, platform
        code = {"x86_64": b"\\xb8\\x2a\\0\\0\\0\\xc3", "aarch64": b"\\x40\\x05\\x80\\x52\\xc0\\x03\\x5f\\xd6"}
        memory = mmap.mmap(-1, 4096, prot=7)
        memory.write(code[platform.machine()])
        print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))())
        """, "42\n"),
    python("flock_excludes_another_process", """
        import fcntl, os
        first = open("lock", "w")
        fcntl.flock(first, fcntl.LOCK_EX)
        second = open("lock", "w")
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("locked")
        fcntl.flock(first, fcntl.LOCK_UN)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
        """, "locked\nfree\n"),
    python("posix_locks_exclude_another_process", """
        import fcntl, os
        file = open("lock", "w+")
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        if os.fork() == 0:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)
            except OSError:
                os._exit(3)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """, "3\n"),
    sh("flock_command", "flock lock sh -c 'flock -n lock echo no || echo busy'; flock -n lock echo free", "busy\nfree\n",
       needs=("flock",)),
    python("inotify_on_own_files", """
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
        """, "['0x100', '0x8', '0x200']\n"),
    python("nameless_file_gets_a_name", """
        import os
        file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(file, b"nameless")
        os.link(f"/proc/self/fd/{file}", "named", src_dir_fd=os.open(".", os.O_RDONLY), follow_symlinks=True)
        print(open("named").read())
        """, "nameless\n"),
    python("fallocate_reserves_and_punches", """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open("f", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(file, 0, 1 << 20)
        print(os.fstat(file).st_size, os.fstat(file).st_blocks >= 2048)
        call = libc.fallocate
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        print(call(file, 3, 0, 1 << 19), os.fstat(file).st_blocks <= 1100)
        """, "1048576 True\n0 True\n"),
    python("long_and_unicode_names", """
        import os
        names = ["n" * 255, "\\u00e9t\\u00e9 \\u65e5\\u672c \\U0001f600", "a\\nb", " ", "-rf", "'\\"$`"]
        for name in names:
            open(name, "w").close()
        print(set(names) <= set(os.listdir()))
        try:
            open("n" * 256, "w")
        except OSError as error:
            print(error.strerror)
        """, "True\nFile name too long\n"),
    python("file_name_with_invalid_utf8", """
        import os
        open(b"\\xff\\xfe", "w").close()
        print(b"\\xff\\xfe" in os.listdir(b"."), "\\udcff\\udcfe" in os.listdir("."))
        """, "True True\n"),
    python("deep_directories", """
        import os
        start = os.getcwd()
        for _ in range(200):
            os.mkdir("d" * 50); os.chdir("d" * 50)
        open("f", "w").write("deep")
        print(len(os.getcwd()) > 10000 or len(os.getcwd()), open("f").read())
        """, "True deep\n"),
    sh("permissions_bind_the_owner", """
        umask 022; echo x >f; chmod 000 f; cat f 2>/dev/null || echo refused; stat -c %a f; chmod 644 f; cat f
        """, "refused\n0\nx\n"),
    sh("umask_applies", "umask; umask 077; touch f; mkdir d; stat -c %a f d", "0022\n600\n700\n"),
    sh("setgid_and_sticky_bits", "mkdir d; chmod 3775 d; stat -c %a d; touch f; chmod u+s f; stat -c %a f", "3775\n4644\n"),
    sh("times_are_set_and_kept", "touch -d '2001-02-03 04:05:06 UTC' f; stat -c '%X %Y' f; touch -a f; stat -c %Y f", """\
        981173106 981173106
        981173106
        """),
    python("nanoseconds_of_times", """
        import os
        open("f", "w").close()
        os.utime("f", ns=(1_000_000_007, 2_000_000_009))
        print(os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns)
        """, "1000000007 2000000009\n"),
    python("sendfile_between_files", """
        import os
        open("a", "wb").write(b"x" * 100_000)
        with open("a", "rb") as source, open("b", "wb") as target:
            print(os.sendfile(target.fileno(), source.fileno(), 0, 100_000))
        """, "100000\n"),
    python("splice_through_a_pipe", """
        import os
        open("a", "wb").write(b"spliced")
        with open("a", "rb") as source:
            read, write = os.pipe()
            print(os.splice(source.fileno(), write, 7), os.read(read, 10))
        """, "7 b'spliced'\n"),
    python("copy_file_range_copies", """
        import os, shutil
        open("a", "wb").write(b"copied")
        with open("a", "rb") as source, open("b", "wb") as target:
            print(os.copy_file_range(source.fileno(), target.fileno(), 6))
        shutil.copy2("b", "c"); shutil.copytree(".", "/tmp/copied-tree", dirs_exist_ok=True)
        print(open("c").read()); shutil.rmtree("/tmp/copied-tree")
        """, "6\ncopied\n"),
    sh("reflink_falls_back", "echo x >a; cp --reflink=auto a b; cat b; cp -a --sparse=always a c; cat c", "x\nx\n"),
    python("extended_attributes_of_own_files", """
        import os
        open("f", "w").close()
        os.setxattr("f", "user.note", b"value")
        print(os.getxattr("f", "user.note"), os.listxattr("f"))
        """, "b'value' ['user.note']\n"),
    sh("fifo_connects_two_processes", "mkfifo p; (echo through >p) & cat p; wait; test -p p && echo fifo", "through\nfifo\n"),
    sh("temporary_directories_are_writable", """
        for d in /tmp /var/tmp /dev/shm "$HOME"; do
            f=$(mktemp -p "$d") && echo ok >"$f" && cat "$f" && rm "$f" || echo "no $d"
        done
        stat -c %a /tmp /var/tmp /dev/shm
        """, "ok\nok\nok\nok\n1777\n1777\n1777\n"),
    sh("programs_run_from_temporary_directories", """
        for d in /tmp /var/tmp "$HOME" .; do
            f=$(mktemp -p "$d"); printf '#!/bin/sh\\necho ran\\n' >"$f"; chmod +x "$f"; "$f"; rm "$f"
        done
        """, "ran\nran\nran\nran\n"),
    bash("rename_between_temporary_and_work_directory", "f=$(mktemp); echo x >$f; mv $f here; cat here", "x\n"),
    python("many_open_files", """
        files = [open("/dev/null") for _ in range(1000)]
        print(len(files))
        """, "1000\n"),
    python("many_small_files", """
        import os
        os.mkdir("many")
        for number in range(5000):
            open(f"many/{number}", "w").close()
        print(len(os.listdir("many")))
        """, "5000\n"),
    python("seventy_thousand_files", """
        import os
        os.mkdir("many")
        for number in range(70_000):
            os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
        print(len(os.listdir("many")))
        """, "70000\n", is_quick=False),
    python("file_of_300_mib", """
        block = b"x" * (1 << 20)
        with open("large", "wb") as file:
            for _ in range(300):
                file.write(block)
        import os
        print(os.path.getsize("large") >> 20); os.unlink("large")
        """, "300\n", is_quick=False),
    python("statvfs_and_disk_usage", """
        import os, shutil
        found = shutil.disk_usage(".")
        print(found.total > 0, found.free > 0, os.statvfs(".").f_namemax, os.statvfs(".").f_ffree > 1000)
        """, "True True 255 True\n"),
    python("directory_descriptors", """
        import os
        os.mkdir("d")
        where = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
        os.close(os.open("f", os.O_CREAT, dir_fd=where)); os.rename("f", "g", src_dir_fd=where, dst_dir_fd=where)
        print(os.listdir(where)); os.fchdir(where); print(os.path.basename(os.getcwd()), os.access("g", os.R_OK))
        """, "['g']\nd True\n"),
    python("deleted_working_directory", """
        import os
        os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
        try:
            os.getcwd()
        except FileNotFoundError:
            print("gone")
        """, "gone\n"),
    python("direct_and_synchronous_writes", """
        import mmap, os
        file = os.open("f", os.O_CREAT | os.O_RDWR | os.O_DSYNC, 0o600)
        os.write(file, b"x" * 4096); os.fsync(file); os.fdatasync(file); os.sync()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        print(os.pread(file, 3, 0))
        """, "b'xxx'\n"),
    python("appends_of_two_processes_are_whole", """
        import os
        pids = []
        for letter in b"ab":
            if (pid := os.fork()) == 0:
                file = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                for _ in range(500):
                    os.write(file, bytes([letter]) * 99 + b"\\n")
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        lines = open("log").read().splitlines()
        print(len(lines), {len(set(line)) for line in lines})
        """, "1000 {1}\n"),
)
