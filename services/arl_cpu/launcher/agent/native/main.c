/* Pid 1 of an isolated environment. It executes the requests of the launcher until the channel ends. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127, STANDARD_FILES = 3, MAX_NOTES = 4, END_MS = 2500, SHELL_END_MS = 500 };

struct agent agent;

static struct {
    bool runs, is_watched, has_ended, has_shell_ended;
    pid_t pid, shell_pid; /* 0 if it has no first process, or no session */
    int status, shell_status;
    long peak_kib;
    const char *notes[MAX_NOTES];
    int note_count;
    struct order order;
    struct processes before;
    struct user user;
    long long cpu_us_before;
} action;
static bool has_leftovers;

static long long children_cpu_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000LL + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void forget_action(void)
{
    source_remove();
    order_close(&action.order);
    user_forget(&action.user);
    processes_clear(&action.before);
    memset(&action, 0, sizeof action);
    action.order.file = -1;
}

static void add_note(const char *note)
{
    if (note && action.note_count < MAX_NOTES)
        action.notes[action.note_count++] = note;
}

/* Return the notes and a message as one text, or NULL. Free the result. */
static char *with_notes(char *message)
{
    for (int each = action.note_count; each-- > 0;) {
        char *rest = message;
        if (asprintf(&message, "%s%s%s", action.notes[each], rest ? "; " : "", rest ? rest : "") < 0)
            _exit(1);
        free(rest);
    }
    return message;
}

static void refuse(const char *problem)
{
    char *text = quoted(problem);
    say("{\"op\": \"exited\", \"refused\": %s}", text);
    free(text);
}

static void say_limit(const char *limit, const char *message)
{
    say("{\"op\": \"exited\", \"limit\": \"%s\", \"message\": \"%s\"}", limit, message);
}

/* Return the number of living processes that the action started; earlier processes do not count. */
static size_t count_left(void)
{
    struct processes now = {0};
    siginfo_t any;
    size_t left = 0;

    /* Every process here is a descendant of this process. */
    if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 && errno == ECHILD) {
        has_leftovers = false;
        return 0;
    }
    others(&now);
    has_leftovers = now.count > 0;
    for (size_t each = 0; each < now.count; each++)
        left += !processes_have(&action.before, now.at[each]);
    processes_clear(&now);
    return left;
}

static void finish(int status, long peak_kib)
{
    bool is_full = write_area_is_full(); /* before the removal of the source, which would hide it */
    source_remove();
    size_t left = agent.keeps_processes ? count_left() : 0;
    act_as(&action.user);
    char *message = files_send(&action.order), *text;
    act_as_root(&action.user);
    message = with_notes(message);
    text = message ? quoted(message) : NULL;
    char shell[16] = "null";

    if (action.has_shell_ended)
        snprintf(shell, sizeof shell, "%d", action.shell_status);
    say("{\"op\": \"exited\", \"status\": %d, \"pid\": %d, \"shell_status\": %s, \"peak_kib\": %ld, \"cpu_us\": %lld, \"leftover_processes\": %zu, "
        "\"message\": %s, \"limit_if_failed\": %s}",
        status, (int)action.pid, shell, peak_kib, children_cpu_us() - action.cpu_us_before, left, text ? text : "null",
        is_full ? "\"disk\"" : "null");
    free(text);
    free(message);
    forget_action();
}

/* Report like a shell: 127 for a missing command, 126 for one that cannot be executed. */
static void report_unstarted(int failure, int standard_error)
{
    char *text;
    const char *name = action.order.argv.count ? action.order.argv.at[0].text : "";

    if (failure == EAGAIN) {
        say_limit("pids", "the process limit was reached before the action could start");
    } else if (order_is(&action.order, "source") && (failure == ENOSPC || failure == EDQUOT)) {
        say_limit("disk", "the source does not fit on the disk of the environment");
    } else if (failure == ENOENT && order_is(&action.order, "source")) {
        say("{\"op\": \"exited\", \"no_interpreter\": true}");
    } else {
        int length = asprintf(&text, "cannot run '%s': [Errno %d] %s: '%s'\n", name, failure, strerror(failure), name);
        if (length < 0)
            _exit(1);
        if (write(standard_error, text, length) < 0)
            errno = 0; /* stderr has no reader; the message has the same text */
        text[length - 1] = 0;
        char *message = quoted(text);
        say("{\"op\": \"exited\", \"status\": %d, \"message\": %s}",
            (failure == ENOENT ? NOT_FOUND : NOT_EXECUTABLE) << 8, message);
        free(message);
        free(text);
    }
    forget_action();
}

/* Return 0 or an errno. */
static int spawn_action(char **argv, const int *files, int count, bool has_terminal)
{
    char **variables = variables_with_home(&action.order.variables, &action.user);

    if (!argv || !variables)
        _exit(1);
    act_as(&action.user);
    pid_t pid = chdir(action.order.directory.at[0].text) < 0 ? -1 : spawn(argv, variables, files, count, has_terminal);
    int failure = errno;
    act_as_root(&action.user);
    free(variables);
    if (pid < 0)
        return failure;
    action.pid = pid;
    return 0;
}

static int start_command(const int *files, int count, bool has_terminal)
{
    char **argv = order_strings(&action.order.argv);
    int failure = spawn_action(argv, files, count, has_terminal);

    free(argv);
    return failure;
}

static int start_source(char *path, const int *files, int count)
{
    char *argv[] = {(char *)action.order.argv.at[0].text, path, NULL};
    return spawn_action(argv, files, count, false);
}

/* Processes that earlier actions left occupy the process limit, so no program inside could start to end them. */
static void end_leftovers(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    struct processes none = {0};
    pid_t pid;

    kill_all_but(&none);
    for (int waited = 0; waited < END_MS; waited++) {
        while ((pid = waitpid(-1, NULL, WNOHANG | __WALL)) > 0)
            ;
        if (pid < 0)
            break; /* no child is left */
        nanosleep(&pause, NULL);
    }
    processes_clear(&action.before);
    has_leftovers = false;
    add_note("processes that earlier actions had left were ended, because the process limit allowed no other");
}

static void launch(const int *files, int count)
{
    bool is_session = order_is(&action.order, "session"), is_source = order_is(&action.order, "source");
    int failure = 0, source[STANDARD_FILES + 1] = {files[0], files[1], files[2], -1};
    char *path = NULL;

    if (is_source) {
        act_as(&action.user);
        path = source_place(&action.order, STANDARD_FILES, &source[STANDARD_FILES]);
        failure = errno;
        act_as_root(&action.user);
    }
    if (is_source && !path) {
        report_unstarted(failure, files[2]);
        return;
    }
    action.is_watched = order_is(&action.order, "watch");
    action.cpu_us_before = children_cpu_us();
    if (action.is_watched) {
        others(&action.before);
        action.shell_pid = action.order.argv.count ? atoi(action.order.argv.at[0].text) : 0;
    }
    if (!action.is_watched)
        give_files(files, count, &action.user);
    failure = 0;
    /* If memory runs out, the kernel must choose the action and not the agent. */
    set_oom_score("1000");
    for (int attempt = 0; attempt < 2; attempt++) {
        if (is_source)
            failure = start_source(path, source, source[STANDARD_FILES] < 0 ? STANDARD_FILES : STANDARD_FILES + 1);
        else if (!action.is_watched)
            failure = start_command(files, count, is_session);
        if (failure != EAGAIN || !has_leftovers)
            break;
        end_leftovers();
    }
    set_oom_score("0");
    free(path);
    if (source[STANDARD_FILES] >= 0)
        close(source[STANDARD_FILES]);
    if (failure) {
        report_unstarted(failure, files[2]);
        return;
    }
    action.runs = true;
    say("{\"op\": \"started\"}");
    if (is_session)
        finish(0, 0);
}

static void start(const int *files, int count)
{
    bool is_full = false;
    char *problem;

    if (!order_open(&action.order, files[0]))
        _exit(1);
    /* If no process was left behind, none can have appeared: the environment was frozen. */
    if (has_leftovers)
        others(&action.before);
    problem = user_find(&action.order.user, &action.user);
    if (!problem) {
        add_note(workspace_mend(&action.user));
        act_as(&action.user);
        problem = files_write(&action.order, &is_full);
        if (!problem)
            problem = directory_check(action.order.directory.at[0].text);
        act_as_root(&action.user);
    }
    if (problem && is_full)
        say_limit("disk", "the input files do not fit on the disk of the environment");
    else if (problem)
        refuse(problem);
    if (problem)
        forget_action();
    else if (order_is(&action.order, "files"))
        finish(0, 0);
    else
        launch(files + 1, count - 1);
    free(problem);
    for (int each = 1; each < count; each++)
        close(files[each]);
}

static void end_action(void)
{
    siginfo_t state = {.si_pid = 0};

    kill_all_but(&action.before);
    /* A tracer that an earlier action left behind can withhold the end of the first process. */
    if (action.pid > 0 && waitid(P_PID, action.pid, &state, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 &&
        state.si_pid == 0)
        kill(-1, SIGKILL);
}

/* A program can declare its parent, which may be this process, its tracer. Release it with the signal that stopped it. */
static void release_tracee(pid_t pid, int status)
{
    bool is_event = status >> 16 || WSTOPSIG(status) == SIGTRAP;
    ptrace(PTRACE_DETACH, pid, 0, is_event ? 0 : WSTOPSIG(status));
}

/* Reap every dead child, including orphans. Report the action's end when no zombie is left. */
static void reap(void)
{
    struct rusage usage;
    int status;
    pid_t pid;

    while ((pid = wait4(-1, &status, WNOHANG | __WALL, &usage)) > 0) {
        if (WIFSTOPPED(status)) {
            release_tracee(pid, status);
        } else if (action.runs && pid == action.pid) {
            action.has_ended = true;
            action.status = status;
            action.peak_kib = usage.ru_maxrss;
        } else if (action.runs && pid == action.shell_pid) {
            action.has_shell_ended = true;
            action.shell_status = status;
        }
    }
    if (action.runs && action.has_ended)
        finish(action.status, action.peak_kib);
}

/* The terminal closes shortly before the shell can be reaped. Messages wait for at most SHELL_END_MS meanwhile. */
static void finish_after_shell(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (int waited = 0; waited < SHELL_END_MS && action.shell_pid && !action.has_shell_ended; waited++) {
        reap();
        nanosleep(&pause, NULL);
    }
    finish(0, 0);
}

/* Return false at the end of the channel. */
static bool obey(void)
{
    char text[64] = "";
    int files[MAX_FILES], count;

    if (hear(CHANNEL, text, sizeof text - 1, files, &count) <= 0)
        return false;
    if (strcmp(text, "{\"op\": \"start\"}") == 0 && count >= 4)
        start(files, count);
    else if (strcmp(text, "{\"op\": \"kill\"}") == 0 && action.runs)
        end_action();
    else if (strcmp(text, "{\"op\": \"finish\"}") == 0 && action.runs && action.is_watched)
        finish(0, 0);
    else if (strcmp(text, "{\"op\": \"finish\", \"shell\": \"ended\"}") == 0 && action.runs && action.is_watched)
        finish_after_shell();
    return true;
}

static void serve(int signals)
{
    struct signalfd_siginfo told[8];

    for (;;) {
        struct pollfd watched[] = {{.fd = CHANNEL, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        if (poll(watched, 2, -1) < 0)
            continue;
        if (watched[1].revents && read(signals, told, sizeof told) < 0)
            continue;
        if (watched[0].revents && !obey())
            return;
        reap();
    }
}

static int children_signals(void)
{
    sigset_t children;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    return signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "--check") == 0)
        return 0;
    if (count != 5) {
        fputs("usage: agent WORKSPACE AREA keep|sweep HOME (started by the launcher)\n", stderr);
        return 2;
    }
    prctl(PR_SET_DUMPABLE, 0);
    fcntl(CHANNEL, F_SETFD, FD_CLOEXEC);
    fcntl(OOM_SCORE, F_SETFD, FD_CLOEXEC);
    agent.workspace = arguments[1];
    agent.area = arguments[2];
    agent.keeps_processes = strcmp(arguments[3], "keep") == 0;
    agent.home = arguments[4];
    action.order.file = -1;
    agent.workspace_file = -1;
    workspace_mend(&action.user);
    int signals = children_signals();
    if (agent.workspace_file < 0 || signals < 0) {
        char *text = quoted(strerror(errno));
        say("{\"op\": \"failed\", \"message\": %s}", text);
        return 1;
    }
    say("{\"op\": \"ready\"}");
    serve(signals);
    kill(-1, SIGKILL);
    return 0;
}
