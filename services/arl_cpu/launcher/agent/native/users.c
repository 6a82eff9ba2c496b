/* The users of an environment with a range of ids. users.py does the same and explains it. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_ID = 65534, MAX_BYTES = 1 << 20, MAX_FIELDS = 7 };

/* Raw calls: the library's functions would also change other threads, which this process lacks. */
static void set_ids(uid_t uid, gid_t gid, const gid_t *groups, int group_count, bool as_root_first)
{
    long failed = 0;

    if (as_root_first)
        failed |= syscall(SYS_setresuid, 0, 0, 0) | syscall(SYS_setresgid, 0, 0, 0);
    failed |= syscall(SYS_setgroups, (long)group_count, groups);
    if (!as_root_first)
        failed |= syscall(SYS_setresgid, gid, gid, 0) | syscall(SYS_setresuid, uid, uid, 0);
    if (failed)
        _exit(1);
}

void act_as(const struct user *user)
{
    if (user->is_given && (user->uid || user->gid))
        set_ids(user->uid, user->gid, user->groups, user->group_count, false);
}

/* A change of ids resets the signal of the parent's death and may allow dumps. */
void act_as_root(const struct user *user)
{
    if (!user->is_given || (!user->uid && !user->gid))
        return;
    set_ids(0, 0, NULL, 0, true);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static bool id_of(const char *text, long *id)
{
    size_t length = strspn(text, "0123456789");

    *id = length && length < 6 && !text[length] ? atol(text) : -1;
    return *id >= 0 && *id <= MAX_ID;
}

static bool is_number(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

/* Return the start of a file of accounts as text, empty if it is missing or unusual. Free the result. */
static char *read_accounts(const char *path)
{
    struct stat state;
    char *text = malloc(MAX_BYTES + 1);
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t length = 0;

    if (!text)
        _exit(1);
    if (file >= 0 && fstat(file, &state) == 0 && S_ISREG(state.st_mode))
        length = read(file, text, MAX_BYTES);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    return text;
}

/* Split the next complete row of at least `count` fields whose third field is an id. */
static bool next_row(char **rest, char **fields, int count)
{
    char *line;
    long id;

    while ((line = strsep(rest, "\n"))) {
        int found = 0;
        while (found < MAX_FIELDS && (fields[found] = strsep(&line, ":")))
            found++;
        if (found >= count && id_of(fields[2], &id))
            return true;
    }
    return false;
}

static bool has_member(char *members, const char *login)
{
    char *each;

    while ((each = strsep(&members, ",")))
        if (strcmp(each, login) == 0)
            return true;
    return false;
}

/* Find the entry by name or number. Return the login name, or NULL. Free the result. */
static char *find_entry(const char *name, struct user *user)
{
    char *text = read_accounts("/etc/passwd"), *rest = text, *fields[MAX_FIELDS], *login = NULL;
    long uid, gid;

    while (!login && next_row(&rest, fields, MAX_FIELDS)) {
        if ((strcmp(fields[0], name) && strcmp(fields[2], name)) || !id_of(fields[2], &uid) || !id_of(fields[3], &gid))
            continue;
        user->uid = uid;
        user->gid = gid;
        user->home = *fields[5] ? strdup(fields[5]) : NULL;
        login = strdup(fields[0]);
    }
    free(text);
    return login;
}

/* Set the group of this name, or all groups of the login if the name is NULL. Return false if the name is unknown. */
static bool find_groups(const char *name, const char *login, struct user *user)
{
    char *text = read_accounts("/etc/group"), *rest = text, *fields[MAX_FIELDS];
    bool is_found = !name;
    long gid;

    while (next_row(&rest, fields, 4)) {
        id_of(fields[2], &gid);
        if (name && strcmp(fields[0], name) == 0) {
            user->gid = gid;
            is_found = true;
            break;
        }
        if (!name && user->group_count < MAX_GROUPS && has_member(fields[3], login))
            user->groups[user->group_count++] = gid;
    }
    free(text);
    return is_found;
}

static char *problem_of(const char *format, const char *text)
{
    char *message;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (asprintf(&message, format, text, MAX_ID) < 0)
        _exit(1);
#pragma GCC diagnostic pop
    return message;
}

static char *find_split(char *name, char *group, const char *text, struct user *user)
{
    const char *too_large = "user '%s' has an id above %d, the largest one of an environment";
    long uid = 0, gid = 0;

    if ((is_number(name) && !id_of(name, &uid)) || (group && is_number(group) && !id_of(group, &gid)))
        return problem_of(too_large, text);
    user->uid = uid;
    user->gid = gid;
    if (is_number(name) && group && is_number(group))
        return NULL;
    char *login = find_entry(name, user), *problem = NULL;
    if (!login && !is_number(name))
        problem =
            problem_of("user '%s' does not exist in the environment; use a name of its /etc/passwd or a uid up to %d", text);
    else if (group && *group && is_number(group))
        user->gid = gid;
    else if (group && *group && !find_groups(group, NULL, user))
        problem = problem_of("the group of user '%s' does not exist in the environment; use a name of its /etc/group", text);
    else if (login && !(group && *group))
        find_groups(NULL, login, user);
    free(login);
    return problem;
}

char *user_find(const struct items *given, struct user *user)
{
    memset(user, 0, sizeof *user);
    if (!given->count)
        return NULL;
    user->is_given = true;
    char *name = strdup(given->at[0].text), *group = name;
    if (!name)
        _exit(1);
    strsep(&group, ":");
    char *problem = find_split(name, group, given->at[0].text, user);
    free(name);
    return problem;
}

void user_forget(struct user *user)
{
    free(user->home);
    memset(user, 0, sizeof *user);
}
