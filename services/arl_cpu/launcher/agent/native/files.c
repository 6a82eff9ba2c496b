/* File access below the working directory. A race against it can only affect the environment itself. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_UNFINISHED = 100 };
#define FETCH_LIMIT (8LL << 20)

static int open_beneath(int directory, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .mode = flags & O_CREAT ? mode : 0,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
}

static int make_directories(int base, const char *path, mode_t mode);

/* Create the directory again. A program may have put something else in its place, which is moved aside. */
static const char *make_again(const char *root, const struct user *user)
{
    struct stat state;
    char *aside;

    if (lstat(root, &state) == 0) {
        if (asprintf(&aside, "%s.replaced", root) < 0)
            _exit(1);
        int failed = rename(root, aside);
        free(aside);
        if (failed)
            return NULL;
    }
    /* If a program was faster with the last directory, its owner must not change. */
    if (make_directories(AT_FDCWD, root, 0777) < 0 || mkdir(root, 0777) < 0)
        return NULL;
    if (user->is_given && lchown(root, user->uid, user->gid) < 0)
        return NULL;
    return "the working directory was missing and was created again, empty";
}

const char *workspace_mend(const struct user *user)
{
    struct stat state;
    const char *note = NULL;

    if (stat(agent.workspace, &state) < 0 || !S_ISDIR(state.st_mode)) {
        note = make_again(agent.workspace, user);
    } else if (!(state.st_mode & S_IXUSR) && state.st_uid == (user->is_given ? user->uid : geteuid())) {
        act_as(user);
        if (chmod(agent.workspace, (state.st_mode & 07777) | S_IRWXU) == 0)
            note = "the working directory could not be entered; its owner has all permissions again";
        act_as_root(user);
    }
    int file = open(agent.workspace, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        if (agent.workspace_file >= 0)
            close(agent.workspace_file);
        agent.workspace_file = file;
    }
    return note;
}

bool write_area_is_full(void)
{
    struct statvfs state;
    return statvfs(agent.area, &state) == 0 && (state.f_bavail == 0 || state.f_favail == 0);
}

/* Return `path` relative to the working directory without `.` and `..`, or NULL if it leads out. Free the result. */
static char *relative(const char *path)
{
    size_t root = strlen(agent.workspace);
    char *joined = NULL, *clean, *end, *step, *rest;

    if (root == 1)
        root = 0; /* "/" itself */
    if (asprintf(&joined, "%s/%s", *path == '/' ? "" : agent.workspace, path) < 0)
        _exit(1);
    clean = malloc(strlen(joined) + 2);
    if (!clean)
        _exit(1);
    end = clean;
    for (step = strtok_r(joined, "/", &rest); step; step = strtok_r(NULL, "/", &rest)) {
        if (strcmp(step, ".") == 0)
            continue;
        if (strcmp(step, "..") == 0) {
            while (end > clean && *--end != '/')
                ;
        } else {
            *end++ = '/';
            end = stpcpy(end, step);
        }
    }
    *end = 0;
    free(joined);
    if (strncmp(clean, agent.workspace, root) != 0 || clean[root] != '/' || clean[root + 1] == 0) {
        free(clean);
        return NULL;
    }
    memmove(clean, clean + root + 1, strlen(clean + root + 1) + 1);
    return clean;
}

static char *no_path(const char *path)
{
    char *message;
    if (asprintf(&message, "path '%s' is not inside the working directory", path) < 0)
        _exit(1);
    return message;
}

int write_all(int file, const struct item *content)
{
    size_t at = 0;
    while (at < content->length) {
        ssize_t done = write(file, content->text + at, content->length - at);
        if (done < 0 && errno != EINTR)
            return -1;
        at += done > 0 ? done : 0;
    }
    return 0;
}

/* Create a file with a free name. An action may have created any kind of file under any name. */
static int create_unfinished(int directory, char *name, size_t room)
{
    int file = -1;

    for (int number = 0; number < MAX_UNFINISHED && file < 0; number++) {
        snprintf(name, room, ".tangram-unfinished-%d", number);
        file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST)
            break;
    }
    return file;
}

/* Write all of the content. If it does not fit, keep the previous file. A file keeps its mode. */
static int replace(int directory, const char *name, const struct item *content, const struct stat *before)
{
    mode_t mode = before && S_ISREG(before->st_mode) ? before->st_mode & 07777 : 0644;
    char unfinished[32];
    int failure;

    if (before && S_ISDIR(before->st_mode)) {
        errno = EISDIR;
        return -1;
    }
    int file = create_unfinished(directory, unfinished, sizeof unfinished);
    if (file < 0)
        return -1;
    failure = write_all(file, content) < 0 || fchmod(file, mode) < 0 ? errno : 0;
    if (close(file) < 0 && !failure)
        failure = errno;
    if (!failure && renameat(directory, unfinished, directory, name) < 0)
        failure = errno;
    if (failure)
        unlinkat(directory, unfinished, 0);
    errno = failure;
    return failure ? -1 : 0;
}

/* Write to the target of a link if it is below the working directory. */
static int write_through(const char *link, const struct item *content)
{
    int file = open_beneath(agent.workspace_file, link, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK, 0644);
    if (file < 0)
        return -1;
    int done = write_all(file, content), failure = errno;
    close(file);
    errno = failure;
    return done;
}

/* Create the directories above a path. */
static int make_directories(int base, const char *path, mode_t mode)
{
    char *each = strdup(path);
    int done = 0;

    if (!each)
        _exit(1);
    for (char *at = strchr(each + 1, '/'); at && done == 0; at = strchr(at + 1, '/')) {
        *at = 0;
        if (mkdirat(base, each, mode) < 0 && errno != EEXIST)
            done = -1;
        *at = '/';
    }
    free(each);
    return done;
}

static int write_file(const char *path, const struct item *content)
{
    struct stat before;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *parent = slash ? strndup(path, slash - path) : strdup(".");
    int directory = -1, done = -1;

    if (!parent)
        _exit(1);
    if (make_directories(agent.workspace_file, path, 0777) == 0)
        directory = open_beneath(agent.workspace_file, parent, O_PATH | O_DIRECTORY, 0);
    free(parent);
    if (directory < 0)
        return -1;
    bool was_there = fstatat(directory, name, &before, AT_SYMLINK_NOFOLLOW) == 0;
    if (!was_there && errno != ENOENT)
        done = -1;
    else if (was_there && S_ISLNK(before.st_mode))
        done = write_through(path, content);
    else
        done = replace(directory, name, content, was_there ? &before : NULL);
    int failure = errno;
    close(directory);
    errno = failure;
    return done;
}

static char *check(const struct items *paths)
{
    for (uint32_t each = 0; each < paths->count; each++) {
        char *clean = strlen(paths->at[each].text) == paths->at[each].length ? relative(paths->at[each].text) : NULL;
        if (!clean)
            return no_path(paths->at[each].text);
        free(clean);
    }
    return NULL;
}

char *files_write(const struct order *order, bool *is_full)
{
    char *problem = check(&order->paths);

    *is_full = false;
    if (!problem)
        problem = check(&order->fetch);
    for (uint32_t each = 0; each < order->paths.count && !problem; each++) {
        char *path = relative(order->paths.at[each].text);
        if (write_file(path, &order->contents.at[each]) < 0) {
            *is_full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
            if (asprintf(&problem, "%s: '%s'", strerror(errno), order->paths.at[each].text) < 0)
                _exit(1);
        }
        free(path);
    }
    return problem;
}

char *files_send(const struct order *order)
{
    char *message = NULL;
    long long left = FETCH_LIMIT;

    for (uint32_t each = 0; each < order->fetch.count; each++) {
        struct stat state;
        char *path = relative(order->fetch.at[each].text);
        int file = path ? open_beneath(agent.workspace_file, path, O_RDONLY | O_NONBLOCK, 0) : -1;
        free(path);
        if (file < 0)
            continue;
        if (fstat(file, &state) == 0 && S_ISREG(state.st_mode)) {
            if (state.st_size > left) {
                free(message);
                if (asprintf(&message, "fetch returns at most %lld bytes in total; '%s' has %lld", FETCH_LIMIT,
                             order->fetch.at[each].text, (long long)state.st_size) < 0)
                    _exit(1);
            } else {
                left -= state.st_size;
                if (!say_file(each, state.st_size, file) && !message)
                    message = strdup("too many open files are in transit between processes of this user");
            }
        }
        close(file);
    }
    return message;
}

char *directory_check(const char *path)
{
    struct stat state;
    char *problem = NULL;
    int length = 0;

    if (stat(path, &state) < 0 || !S_ISDIR(state.st_mode))
        length = asprintf(&problem, "cwd '%s' is not a directory of the environment", path);
    else if (access(path, X_OK) < 0)
        length = asprintf(&problem, "cwd '%s' cannot be entered: %s", path, strerror(errno));
    if (length < 0)
        _exit(1);
    return problem;
}
