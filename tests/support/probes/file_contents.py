"""Probes of reading, writing, mapping and locking the contents of files."""

from support.probe import Probe, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "sparse_file_of_1_gib",
        """
        import os
        with open("sparse", "wb") as file:
            os.ftruncate(file.fileno(), 1 << 30)
            file.seek((1 << 30) - 1)
            file.write(b"x")
        found = os.stat("sparse")
        print(found.st_size, found.st_blocks * 512 < 1 << 20)
        """,
        "1073741824 True\n",
    ),
    python(
        "sparse_file_has_holes",
        """
        import os
        with open("sparse", "wb") as file:
            file.seek(8 << 20)
            file.write(b"x")
        with open("sparse", "rb") as file:
            print(os.lseek(file.fileno(), 0, os.SEEK_DATA) > 0, os.lseek(file.fileno(), 0, os.SEEK_HOLE))
        """,
        "True 0\n",
    ),
    sh(
        "truncate_and_dd_seek",
        "truncate -s 300M t; dd if=/dev/zero of=t bs=1 count=1 seek=400M 2>/dev/null; stat -c %s t",
        "419430401\n",
    ),
    python(
        "shared_mapping_of_a_file",
        """
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
        """,
        "b'child' b'child'\n",
    ),
    python(
        "private_mapping_of_a_file",
        """
        import mmap
        open("m", "wb").write(b"a" * 4096)
        with open("m", "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            memory[0:1] = b"b"
        print(memory[0:2], open("m", "rb").read(1))
        """,
        "b'ba' b'a'\n",
    ),
    python(
        "executable_mapping",
        """
        import ctypes, mmap, platform
        code = {"x86_64": b"\\xb8\\x2a\\0\\0\\0\\xc3", "aarch64": b"\\x40\\x05\\x80\\x52\\xc0\\x03\\x5f\\xd6"}
        memory = mmap.mmap(-1, 4096, prot=7)
        memory.write(code[platform.machine()])
        print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))())
        """,
        "42\n",
    ),
    python(
        "flock_excludes_another_process",
        """
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
        """,
        "locked\nfree\n",
    ),
    python(
        "posix_locks_exclude_another_process",
        """
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
        """,
        "3\n",
    ),
    sh(
        "flock_command",
        "flock lock sh -c 'flock -n lock echo no || echo busy'; flock -n lock echo free",
        "busy\nfree\n",
        needs=("flock",),
    ),
    python(
        "fallocate_reserves_and_punches",
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open("f", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(file, 0, 1 << 20)
        print(os.fstat(file).st_size, os.fstat(file).st_blocks >= 2048)
        call = libc.fallocate
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        print(call(file, 3, 0, 1 << 19), os.fstat(file).st_blocks <= 1100)
        """,
        "1048576 True\n0 True\n",
    ),
    python(
        "sendfile_between_files",
        """
        import os
        open("a", "wb").write(b"x" * 100_000)
        with open("a", "rb") as source, open("b", "wb") as target:
            print(os.sendfile(target.fileno(), source.fileno(), 0, 100_000))
        """,
        "100000\n",
    ),
    python(
        "splice_through_a_pipe",
        """
        import os
        open("a", "wb").write(b"spliced")
        with open("a", "rb") as source:
            read, write = os.pipe()
            print(os.splice(source.fileno(), write, 7), os.read(read, 10))
        """,
        "7 b'spliced'\n",
    ),
    python(
        "copy_file_range_copies",
        """
        import os, shutil
        open("a", "wb").write(b"copied")
        with open("a", "rb") as source, open("b", "wb") as target:
            print(os.copy_file_range(source.fileno(), target.fileno(), 6))
        shutil.copy2("b", "c"); shutil.copytree(".", "/tmp/copied-tree", dirs_exist_ok=True)
        print(open("c").read()); shutil.rmtree("/tmp/copied-tree")
        """,
        "6\ncopied\n",
    ),
    sh("reflink_falls_back", "echo x >a; cp --reflink=auto a b; cat b; cp -a --sparse=always a c; cat c", "x\nx\n"),
    python(
        "file_of_300_mib",
        """
        block = b"x" * (1 << 20)
        with open("large", "wb") as file:
            for _ in range(300):
                file.write(block)
        import os
        print(os.path.getsize("large") >> 20); os.unlink("large")
        """,
        "300\n",
    ),
    python(
        "direct_and_synchronous_writes",
        """
        import mmap, os
        file = os.open("f", os.O_CREAT | os.O_RDWR | os.O_DSYNC, 0o600)
        os.write(file, b"x" * 4096); os.fsync(file); os.fdatasync(file); os.sync()
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        print(os.pread(file, 3, 0))
        """,
        "b'xxx'\n",
    ),
    python(
        "appends_of_two_processes_are_whole",
        """
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
        """,
        "1000 {1}\n",
    ),
)
