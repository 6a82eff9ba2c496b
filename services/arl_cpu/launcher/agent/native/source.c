/* The source of an action as a file of its working directory, so that it runs as `python3 main.py` does. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_NAMES = 100 };

static struct {
    int directory; /* -1 if there is no file to remove */
    char name[16];
    struct stat state;
} placed = {.directory = -1};

static int write_source(int file, const struct item *source)
{
    return write_all(file, source) < 0 ? -1 : fstat(file, &placed.state);
}

/* Create a file with a free name. An existing file belongs to the program, so it is never replaced. */
static int create_in(int directory)
{
    int file = -1;

    for (int number = 0; number < MAX_NAMES && file < 0; number++) {
        snprintf(placed.name, sizeof placed.name, number ? "main_%d.py" : "main.py", number);
        file = openat(directory, placed.name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file < 0 && errno != EEXIST)
            break;
    }
    return file;
}

static bool place_in(const char *path, const struct item *source)
{
    int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC), file = directory < 0 ? -1 : create_in(directory);

    if (file >= 0 && write_source(file, source) == 0) {
        close(file);
        placed.directory = directory;
        return true;
    }
    int failure = errno;
    if (file >= 0) {
        unlinkat(directory, placed.name, 0);
        close(file);
    }
    if (directory >= 0)
        close(directory);
    errno = failure;
    return false;
}

static const char *variable(const struct items *variables, const char *name)
{
    for (uint32_t each = 0; each < variables->count; each++)
        if (strncmp(variables->at[each].text, name, strlen(name)) == 0)
            return variables->at[each].text + strlen(name);
    return NULL;
}

/* A file in memory, for an environment in which nothing can be written. The program runs and may free space. */
static char *place_in_memory(const struct item *source, int number, int *file)
{
    char *path;

    *file = memfd_create("main.py", MFD_CLOEXEC);
    if (*file < 0)
        return NULL;
    if (write_source(*file, source) < 0) {
        close(*file);
        *file = -1;
        return NULL;
    }
    if (asprintf(&path, "/dev/fd/%d", number) < 0)
        _exit(1);
    return path;
}

char *source_place(const struct order *order, int number, int *file)
{
    const struct item *source = &order->source.at[0];
    const char *temporary = variable(&order->variables, "TMPDIR=");
    const char *others[] = {temporary && *temporary == '/' ? temporary : "/tmp", "/dev/shm"};
    char *path;

    *file = -1;
    if (place_in(order->directory.at[0].text, source))
        return strdup(placed.name);
    int failure = errno;
    for (size_t each = 0; each < sizeof others / sizeof *others; each++)
        if (place_in(others[each], source)) {
            if (asprintf(&path, "%s/%s", others[each], placed.name) < 0)
                _exit(1);
            return path;
        }
    path = place_in_memory(source, number, file);
    errno = failure;
    return path;
}

void source_remove(void)
{
    struct stat now;

    if (placed.directory < 0)
        return;
    /* A file that the program has changed belongs to the program. */
    if (fstatat(placed.directory, placed.name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == placed.state.st_dev &&
        now.st_ino == placed.state.st_ino && now.st_size == placed.state.st_size &&
        memcmp(&now.st_ctim, &placed.state.st_ctim, sizeof now.st_ctim) == 0)
        unlinkat(placed.directory, placed.name, 0);
    close(placed.directory);
    placed.directory = -1;
}
