"""Probes of communication between processes: pipes, shared memory, semaphores and queues."""

from support.probe import Probe, c_program, python, sh

PROBES: tuple[Probe, ...] = (
    python(
        "shared_memory_of_system_v",
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        key = libc.shmget(0, 1 << 20, 0o1600)
        address = libc.shmat(key, None, 0)
        if os.fork() == 0:
            ctypes.memmove(address, b"shared", 6); os._exit(0)
        os.wait(); print(ctypes.string_at(address, 6), libc.shmctl(key, 0, None))
        """,
        "b'shared' 0\n",
    ),
    c_program(
        "semaphores_and_queues_of_system_v",
        """
        #include <stdio.h>
        #include <sys/ipc.h>
        #include <sys/msg.h>
        #include <sys/sem.h>
        int main(void) {
            struct { long type; char text[8]; } message = {3, "queued"}, got = {0};
            struct sembuf up = {0, 2, 0}, down = {0, -1, 0};
            int semaphores = semget(IPC_PRIVATE, 1, 0600), queue = msgget(IPC_PRIVATE, 0600);
            semop(semaphores, &up, 1); semop(semaphores, &down, 1);
            msgsnd(queue, &message, 8, 0); msgrcv(queue, &got, 8, 3, 0);
            printf("%d %s\\n", semctl(semaphores, 0, GETVAL), got.text);
            semctl(semaphores, 0, IPC_RMID); msgctl(queue, IPC_RMID, 0);
        }
        """,
        "1 queued\n",
    ),
    sh(
        "commands_of_system_v",
        "id=$(ipcmk -M 4096 | grep -o '[0-9]*$'); ipcs -m | grep -c 4096; ipcrm -m $id; ipcs -m | grep -c 4096",
        "1\n0\n",
        needs=("ipcmk", "ipcs", "ipcrm"),
        exit_code=1,
    ),
    c_program(
        "message_queue_of_posix",
        """
        #include <fcntl.h>
        #include <mqueue.h>
        #include <stdio.h>
        int main(void) {
            struct mq_attr attributes = {.mq_maxmsg = 4, .mq_msgsize = 16};
            char text[16];
            mqd_t queue = mq_open("/probe", O_CREAT | O_RDWR, 0600, &attributes);
            if (queue < 0) { perror("mq_open"); return 1; }
            mq_send(queue, "posix", 6, 0); mq_receive(queue, text, 16, 0);
            puts(text); mq_unlink("/probe");
        }
        """,
        "posix\n",
        flags="-lrt",
    ),
    c_program(
        "named_semaphore_of_posix",
        """
        #include <fcntl.h>
        #include <semaphore.h>
        #include <stdio.h>
        int main(void) {
            int value;
            sem_t *semaphore = sem_open("/probe", O_CREAT, 0600, 2);
            if (semaphore == SEM_FAILED) { perror("sem_open"); return 1; }
            sem_wait(semaphore); sem_getvalue(semaphore, &value); printf("%d\\n", value);
            sem_unlink("/probe");
        }
        """,
        "1\n",
        flags="-pthread",
    ),
    python(
        "shared_memory_of_multiprocessing",
        """
        from multiprocessing import shared_memory
        first = shared_memory.SharedMemory(create=True, size=1 << 20)
        second = shared_memory.SharedMemory(first.name)
        first.buf[:5] = b"share"; print(bytes(second.buf[:5]))
        second.close(); first.close(); first.unlink()
        """,
        "b'share'\n",
    ),
    python(
        "shared_memory_of_64_mib",
        """
        with open("/dev/shm/large", "wb") as file:
            for _ in range(60):
                file.write(bytes(1 << 20))
        import os
        print(os.path.getsize("/dev/shm/large") >> 20); os.unlink("/dev/shm/large")
        """,
        "60\n",
    ),
    python(
        "locks_shared_by_processes",
        """
        import multiprocessing as mp
        def add(value, lock):
            for _ in range(100):
                with lock:
                    value.value += 1
        context = mp.get_context("fork")
        value, lock = context.Value("i", 0, lock=False), context.Lock()
        workers = [context.Process(target=add, args=(value, lock)) for _ in range(4)]
        for each in workers: each.start()
        for each in workers: each.join()
        print(value.value)
        """,
        "400\n",
    ),
    python(
        "pipe_of_1_mib",
        """
        import fcntl, os
        read, write = os.pipe()
        print(fcntl.fcntl(write, 1031, 1 << 20), fcntl.fcntl(read, 1032))
        os.set_blocking(write, False); print(os.write(write, bytes(1 << 20)))
        """,
        "1048576 1048576\n1048576\n",
    ),
    python(
        "pipe_in_packet_mode",
        """
        import os
        read, write = os.pipe2(os.O_DIRECT)
        os.write(write, b"a"); os.write(write, b"b"); print(os.read(read, 9), os.read(read, 9))
        """,
        "b'a' b'b'\n",
    ),
    c_program(
        "futex_between_processes",
        """
        #include <pthread.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            pthread_mutex_t *lock = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            pthread_mutexattr_t attributes;
            pthread_mutexattr_init(&attributes);
            pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
            pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
            pthread_mutex_init(lock, &attributes);
            if (fork() == 0) { pthread_mutex_lock(lock); _exit(0); }
            wait(0);
            puts(pthread_mutex_lock(lock) == 130 ? "owner died" : "locked");
        }
        """,
        "owner died\n",
        flags="-pthread",
    ),
    python(
        "lock_of_priority_inheritance",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        attribute, lock = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
        libc.pthread_mutexattr_init(attribute)
        print(libc.pthread_mutexattr_setprotocol(attribute, 1), libc.pthread_mutex_init(lock, attribute), libc.pthread_mutex_lock(lock))
        """,
        "0 0 0\n",
    ),
    python(
        "asynchronous_file_io",
        """
        import ctypes
        context = ctypes.c_ulong(0)
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.syscall(206, 8, ctypes.byref(context)))
        """,
        "0\n",
        machine="x86_64",
    ),
)
