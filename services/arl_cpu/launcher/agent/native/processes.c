/* The other processes of this pid namespace. */
#define _GNU_SOURCE
#include "agent.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONVERGE_MS 200
#define DEATH_MS 2500
#define LOOK_AGAIN_NS 500000

/* Return false if it has ended or is a zombie, which has no resources except its number. */
static bool read_process(int proc, const char *name, struct process *found)
{
    char path[32], text[512], *at;
    char state;
    long threads;

    snprintf(path, sizeof path, "%.16s/stat", name);
    int file = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return false;
    text[length] = 0;
    at = strrchr(text, ')');
    /* Fields 3, 20 and 22 of proc_pid_stat(5). A name may contain any characters, including brackets. */
    if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                      &state, &threads, &found->started) != 3)
        return false;
    found->pid = atoi(name);
    /* The first thread of a process may end before the others and then looks like a zombie. */
    return state != 'X' && (state != 'Z' || threads > 1);
}

static void add(struct processes *found, struct process one)
{
    if (found->count == found->room) {
        found->room = found->room ? 2 * found->room : 16;
        found->at = realloc(found->at, found->room * sizeof one);
        if (!found->at)
            _exit(1);
    }
    found->at[found->count++] = one;
}

void others(struct processes *found)
{
    struct dirent *entry;
    struct process one;
    DIR *proc = opendir("/proc");

    found->count = 0;
    if (!proc)
        return;
    while ((entry = readdir(proc))) {
        int pid = atoi(entry->d_name);
        if (pid > 1 && read_process(dirfd(proc), entry->d_name, &one))
            add(found, one);
    }
    closedir(proc);
}

bool processes_have(const struct processes *known, struct process one)
{
    for (size_t each = 0; each < known->count; each++)
        if (known->at[each].pid == one.pid && known->at[each].started == one.started)
            return true;
    return false;
}

void processes_clear(struct processes *known)
{
    free(known->at);
    memset(known, 0, sizeof *known);
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Signal the processes that did not exist before. Return true if there was one. */
static bool kill_fresh(const struct processes *before)
{
    struct processes now = {0};
    bool any = false;

    others(&now);
    for (size_t each = 0; each < now.count; each++)
        if (!processes_have(before, now.at[each])) {
            any = true;
            kill(now.at[each].pid, SIGKILL);
        }
    processes_clear(&now);
    return any;
}

/* Return when no other process runs. Earlier processes survive unless that takes too long. */
void kill_all_but(const struct processes *before)
{
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_NS};
    long long deadline = now_ms() + (before->count ? CONVERGE_MS : 0);

    while (kill_fresh(before)) {
        if (now_ms() >= deadline)
            kill(-1, SIGKILL);
        if (now_ms() > deadline + DEATH_MS)
            return; /* the launcher's next stage ends the whole environment */
        nanosleep(&pause, NULL);
    }
}
