/* The environment's own Python, started with the first source. Any process here may send it messages or end it, so its
 * messages are trusted only about the action that it runs. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

pid_t interpreter_pid = 0;
int interpreter_channel = -1;

static char **its_variables; /* variables at its start */

/* Variables that an interpreter reads at its start or that select it. Other values need another interpreter. */
static bool is_for_start(const char *variable)
{
    static const char *const names[] = {"PATH=", "LD_", "PYTHON", "LANG=", "LC_", "HOME="};

    for (size_t each = 0; each < sizeof names / sizeof *names; each++)
        if (strncmp(variable, names[each], strlen(names[each])) == 0)
            return true;
    return false;
}

static char **variables_for_start(const struct items *variables)
{
    char **found = calloc(variables->count + 1, sizeof *found);
    size_t count = 0;

    if (!found)
        _exit(1);
    for (uint32_t each = 0; each < variables->count; each++)
        if (is_for_start(variables->at[each].text) && !(found[count++] = strdup(variables->at[each].text)))
            _exit(1);
    return found;
}

static void free_variables(char **variables)
{
    for (char **each = variables; each && *each; each++)
        free(*each);
    free(variables);
}

static bool are_same(char **some, char **others)
{
    for (; *some && *others; some++, others++)
        if (strcmp(*some, *others) != 0)
            return false;
    return *some == *others;
}

static int start(const struct order *order, int standard_error)
{
    int ends[2];
    char **argv;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return errno;
    if (!(argv = order_strings(&order->argv)))
        _exit(1);
    /* The action receives the messages of its start. */
    const int files[] = {0, 1, standard_error, ends[1]};
    pid_t pid = spawn(argv, its_variables, files, 4, false);
    int failure = errno;
    free(argv);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return failure;
    }
    interpreter_pid = pid;
    interpreter_channel = ends[0];
    return 0;
}

static int ask(const struct order *order, const int *stdio)
{
    const int files[] = {order->file, stdio[0], stdio[1], stdio[2]};
    struct iovec part = {.iov_base = "run", .iov_len = 3};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof files)];
    } beside;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};

    memset(&beside, 0, sizeof beside);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(header), files, sizeof files);
    return sendmsg(interpreter_channel, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

int interpreter_run(const struct order *order, const int *files)
{
    char **variables = variables_for_start(&order->variables);

    if (interpreter_channel >= 0 && !are_same(variables, its_variables))
        interpreter_end();
    if (interpreter_channel >= 0) {
        free_variables(variables);
        if (ask(order, files) == 0)
            return 0;
        interpreter_end(); /* it was killed, or stopped for so long that its channel is full */
        variables = variables_for_start(&order->variables);
    }
    free_variables(its_variables);
    its_variables = variables;
    int failure = start(order, files[2]);
    return failure ? failure : ask(order, files);
}

bool interpreter_answer(struct answer *answer)
{
    if (interpreter_channel < 0)
        return false;
    ssize_t length = recv(interpreter_channel, answer, sizeof *answer, MSG_DONTWAIT);
    if (length == 0) { /* the signal to its parent reports its death */
        close(interpreter_channel);
        interpreter_channel = -1;
    }
    return length == sizeof *answer;
}

void interpreter_end(void)
{
    if (interpreter_pid > 0)
        kill(interpreter_pid, SIGKILL);
    if (interpreter_channel >= 0)
        close(interpreter_channel);
    interpreter_channel = -1;
}

void interpreter_reaped(void)
{
    interpreter_pid = 0;
    if (interpreter_channel >= 0)
        close(interpreter_channel);
    interpreter_channel = -1;
}
