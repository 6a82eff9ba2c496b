"""Probes of memory: sizes, mappings, threads and their stacks."""

from support.probe import Probe, c_program, other_language, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "count_of_processors",
        """
        import multiprocessing, os
        print(os.cpu_count() >= 1, len(os.sched_getaffinity(0)) >= 1, multiprocessing.cpu_count() >= 1, os.sysconf("SC_NPROCESSORS_ONLN") >= 1)
        print(len(os.sched_getaffinity(0)) <= os.sysconf("SC_NPROCESSORS_CONF"))
        """,
        "True True True True\nTrue\n",
    ),
    python(
        "system_configuration",
        """
        import os
        print(os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES") > 10_000, os.sysconf("SC_AVPHYS_PAGES") > 0, os.sysconf("SC_CLK_TCK"))
        print(os.sysconf("SC_ARG_MAX") >= 2 << 20, os.sysconf("SC_OPEN_MAX") >= 1024, os.getloadavg() >= (0, 0, 0))
        """,
        "4096 True True 100\nTrue True True\n",
    ),
    python(
        "reservation_of_64_gib",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        print(libc.mmap(None, 64 << 30, 0, 0x4022, -1, 0) not in (None, 2**64 - 1), libc.mmap(None, 64 << 30, 3, 0x4022, -1, 0) not in (None, 2**64 - 1))
        """,
        "True True\n",
    ),
    python(
        "virtual_memory_of_4_gib_is_not_memory",
        """
        import mmap
        memory = mmap.mmap(-1, 4 << 30)
        memory[3 << 30] = 1
        print(len(memory) >> 30)
        """,
        "4\n",
    ),
    python(
        "memory_of_400_mib_is_used",
        """
        data = bytearray(400 << 20)
        for at in range(0, len(data), 4096):
            data[at] = 1
        print(len(data) >> 20)
        """,
        "400\n",
    ),
    python(
        "advice_and_locks_of_memory",
        """
        import ctypes, mmap
        memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for name in ("MADV_WILLNEED", "MADV_DONTNEED", "MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_FREE", "MADV_DONTFORK", "MADV_DONTDUMP"):
            memory.madvise(getattr(mmap, name))
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        print(libc.mlock(ctypes.c_void_p(address), 16384), libc.munlock(ctypes.c_void_p(address), 16384))
        """,
        "0 0\n",
    ),
    python(
        "mapping_grows_and_moves",
        """
        import mmap
        memory = mmap.mmap(-1, 4096)
        memory[:3] = b"abc"; memory.resize(1 << 20)
        print(memory[:3], len(memory))
        """,
        "b'abc' 1048576\n",
    ),
    python(
        "anonymous_file_in_memory",
        """
        import fcntl, mmap, os
        handle = os.memfd_create("probe", os.MFD_ALLOW_SEALING)
        os.ftruncate(handle, 1 << 20); os.write(handle, b"memfd")
        print(os.pread(handle, 5, 0), fcntl.fcntl(handle, 1033, 4) == 0)
        print(mmap.mmap(handle, 0)[:5])
        """,
        "b'memfd' True\nb'memfd'\n",
    ),
    sh(
        "program_runs_from_memory",
        """
        python3 -c "
        import os, shutil
        handle = os.memfd_create('p', 0)
        os.write(handle, open('/bin/echo', 'rb').read())
        os.execve(handle, ['echo', 'from memory'], {})"
        """.replace("\n        ", "\n"),
        "from memory\n",
        needs=("python3",),
    ),
    python(
        "two_hundred_threads",
        """
        import threading
        barrier, seen = threading.Barrier(201), []
        threads = [threading.Thread(target=lambda: (barrier.wait(), seen.append(1))) for _ in range(200)]
        for each in threads: each.start()
        barrier.wait()
        for each in threads: each.join()
        print(len(seen))
        """,
        "200\n",
    ),
    c_program(
        "threads_with_large_stacks",
        """
        #include <pthread.h>
        #include <stdio.h>
        #include <string.h>
        static void *work(void *argument) { char large[32 << 20]; memset(large, 1, 1 << 20); return (void *)(long)large[5]; }
        int main(void) {
            pthread_t threads[20];
            pthread_attr_t attributes;
            long sum = 0;
            void *value;
            pthread_attr_init(&attributes);
            pthread_attr_setstacksize(&attributes, 64 << 20);
            for (int n = 0; n < 20; n++) if (pthread_create(&threads[n], &attributes, work, 0)) return 1;
            for (int n = 0; n < 20; n++) { pthread_join(threads[n], &value); sum += (long)value; }
            printf("%ld\\n", sum);
        }
        """,
        "20\n",
        flags="-pthread",
    ),
    python(
        "threads_have_names_and_ids",
        """
        import os, threading
        ids = []
        thread = threading.Thread(target=lambda: ids.append(threading.get_native_id()))
        thread.start(); thread.join()
        print(ids[0] != os.getpid(), threading.get_native_id() == os.getpid())
        """,
        "True True\n",
    ),
    c_program(
        "deep_stack_of_7_mib",
        """
        #include <stdio.h>
        static long down(int n) { volatile char page[4096]; page[0] = 1; return n == 0 ? 0 : page[0] + down(n - 1); }
        int main(void) { printf("%ld\\n", down(1700)); }
        """,
        "1700\n",
        flags="-O0",
    ),
    c_program(
        "stack_overflow_is_a_segmentation_fault",
        """
        #include <stdio.h>
        static long down(long n) { volatile char page[4096]; page[0] = 1; return page[0] + down(n + 1); }
        int main(void) { printf("%ld\\n", down(0)); }
        """,
        "",
        flags="-O0",
        exit_code=139,
    ),
    python(
        "stack_overflow_of_a_child_is_seen",
        """
        import subprocess, sys
        code = "import sys; sys.setrecursionlimit(10**9); f = lambda: repr(g); g = []; exec('def h(n): return max([n], key=h)'); h(1)"
        print(subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode)
        """,
        "-11\n",
    ),
    c_program(
        "malloc_of_a_large_range",
        """
        #include <malloc.h>
        #include <stdio.h>
        #include <stdlib.h>
        int main(void) {
            char *large = malloc(3UL << 30), *more = calloc(2UL << 30, 1);
            if (!large || !more) { puts("refused"); return 1; }
            large[2UL << 30] = 1;
            free(large); malloc_trim(0);
            printf("%d %d\\n", more[1000], posix_memalign((void **)&large, 1 << 21, 1 << 22));
        }
        """,
        "0 0\n",
    ),
    c_program(
        "address_sanitizer_with_leak_check",
        """
        #include <stdio.h>
        #include <stdlib.h>
        int main(void) { int *a = malloc(40); a[3] = 7; printf("%d\\n", a[3]); free(a); return 0; }
        """,
        "7\n",
        flags="-fsanitize=address,undefined -g",
    ),
    c_program(
        "leak_is_reported_by_the_sanitizer",
        """
        #include <stdlib.h>
        #include <stdio.h>
        int main(void) { volatile char *lost = malloc(77); lost = 0; puts("leaked"); fflush(stdout); return 0; }
        """,
        "leaked\n",
        flags="-fsanitize=address",
        exit_code=1,
    ),
    c_program(
        "thread_sanitizer",
        """
        #include <pthread.h>
        #include <stdio.h>
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static int count;
        static void *add(void *argument) { pthread_mutex_lock(&lock); count++; pthread_mutex_unlock(&lock); return 0; }
        int main(void) { pthread_t a, b; pthread_create(&a, 0, add, 0); pthread_create(&b, 0, add, 0);
            pthread_join(a, 0); pthread_join(b, 0); printf("%d\\n", count); }
        """,
        "2\n",
        flags="-fsanitize=thread -pthread",
    ),
    python(
        "numbers_of_the_kernel_are_random",
        """
        import os, subprocess, sys
        code = "import ctypes; print(ctypes.addressof(ctypes.c_int()))"
        print(len({subprocess.run([sys.executable, "-c", code], capture_output=True).stdout for _ in range(3)}) > 1, len(set(os.getrandom(8) for _ in range(9))))
        """,
        "True 9\n",
    ),
    python(
        "usage_of_own_memory",
        """
        import resource
        data = bytearray(b"x") * (50 << 20)
        print(50 < resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10 < 150)
        print(int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20 > 50)
        """,
        "True\nTrue\n",
    ),
    python(
        "memory_limit_of_2_gib_is_found",
        """
        def limit():
            for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
                try:
                    return int(open(path).read())
                except (OSError, ValueError):
                    pass
        print((limit() or 1 << 62) >> 20)
        """,
        "2048\n",
    ),
    other_language(
        "java_heap_fits_into_2_gib",
        "Main.java",
        """
        public class Main { public static void main(String[] a) { System.out.println(Runtime.getRuntime().maxMemory() <= 2L << 30); } }
        """,
        "java Main.java",
        "true\n",
    ),
    other_language(
        "java_fills_its_heap_and_catches_the_error",
        "Main.java",
        """
        import java.util.*;
        public class Main { public static void main(String[] a) {
            List<byte[]> kept = new ArrayList<>();
            try { while (true) kept.add(new byte[1 << 20]); } catch (OutOfMemoryError e) { kept.clear(); System.out.println("caught"); }
        } }
        """,
        "java Main.java",
        "caught\n",
    ),
    other_language(
        "java_garbage_of_6_gib_is_collected",
        "Main.java",
        """
        public class Main { public static void main(String[] a) {
            byte[][] recent = new byte[64][]; long sum = 0;
            for (int n = 0; n < 6144; n++) { recent[n % 64] = new byte[1 << 20]; java.util.Arrays.fill(recent[n % 64], (byte) 1); sum += recent[n % 64][n]; }
            System.out.println(sum);
        } }
        """,
        "java Main.java",
        "6144\n",
    ),
    other_language(
        "node_heap_fits_into_2_gib",
        "main.js",
        "console.log(require('v8').getHeapStatistics().heap_size_limit <= 2 ** 31);\n",
        "node main.js",
        "true\n",
    ),
)
