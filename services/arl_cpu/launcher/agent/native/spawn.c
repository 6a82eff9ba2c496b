/* Start a command by vfork, which copies nothing of this process. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

char **variables_with_home(const struct items *given, const struct user *user)
{
    static char home[4096];
    char **variables = order_strings(given);

    if (!variables || !user->is_given)
        return variables;
    for (uint32_t each = 0; each < given->count; each++)
        if (strncmp(variables[each], "HOME=", 5) == 0)
            return variables;
    variables = realloc(variables, (given->count + 2) * sizeof *variables);
    if (!variables)
        return NULL;
    snprintf(home, sizeof home, "HOME=%s", user->home ? user->home : agent.home);
    variables[given->count] = home;
    variables[given->count + 1] = NULL;
    return variables;
}

void give_files(const int *files, int count, const struct user *user)
{
    for (int each = 0; each < count && user->is_given; each++)
        if (fchown(files[each], user->uid, -1) < 0)
            errno = 0; /* a device of the node */
}

static const char *search_path(char **variables)
{
    for (; *variables; variables++)
        if (strncmp(*variables, "PATH=", 5) == 0)
            return *variables + 5;
    return "/bin:/usr/bin";
}

/* Find a program like a shell: the first executable file, else the first file. Free the result; NULL sets errno. */
static __attribute__((noinline)) char *find_program(const char *name, char **variables)
{
    char *first = NULL, *path;
    struct stat state;

    if (strchr(name, '/'))
        return strdup(name);
    for (const char *at = search_path(variables);; at++) {
        size_t length = strcspn(at, ":");
        if (asprintf(&path, "%.*s/%s", length ? (int)length : 1, length ? at : ".", name) < 0)
            _exit(1);
        bool is_there = stat(path, &state) == 0 && S_ISREG(state.st_mode);
        if (is_there && access(path, X_OK) == 0) {
            free(first);
            return path;
        }
        if (is_there && !first)
            first = path;
        else
            free(path);
        at += length;
        if (!*at)
            break;
    }
    errno = ENOENT;
    return first;
}

static void be_command(const char *program, char **argv, char **variables, const int *files, int count, bool terminal)
{
    sigset_t none;
    const int defaults[] = {SIGPIPE, SIGXFSZ}; /* the agent ignores these two signals; its children must not */

    setsid();
    for (int each = 0; each < count; each++)
        if (dup2(files[each], each) < 0)
            return;
    if (terminal && ioctl(0, TIOCSCTTY, 0) < 0)
        return;
    for (size_t each = 0; each < sizeof defaults / sizeof *defaults; each++)
        signal(defaults[each], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program, argv, variables);
}

pid_t spawn(char **argv, char **variables, const int *files, int count, bool has_terminal)
{
    char *program = find_program(argv[0], variables);
    volatile int failure = 0;

    if (!program)
        return -1;
    pid_t pid = vfork();
    if (pid == 0) {
        be_command(program, argv, variables, files, count, has_terminal);
        failure = errno;
        _exit(127);
    }
    if (pid < 0)
        failure = errno;
    free(program);
    errno = failure; /* a child that did not execute the command is reaped like any other */
    return failure ? -1 : pid;
}

void set_oom_score(const char *score)
{
    if (pwrite(OOM_SCORE, score, strlen(score), 0) < 0)
        errno = 0; /* a host may have set a higher minimum */
}
