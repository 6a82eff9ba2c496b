/* The agent of an environment in C. It does what agent.py does after the isolation, in a tenth of the memory.
 *
 * It is one process and runs one action at a time. It parses no JSON: it compares the few messages of the launcher as a
 * whole. The format of a request (agent_request.py) allows its texts to be used in place.
 */
#ifndef TANGRAM_AGENT_H
#define TANGRAM_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHANNEL = 3, OOM_SCORE = 4, MAX_FILES = 16, MAX_MESSAGE = 2000, MAX_GROUPS = 64 };

struct item {
    const char *text; /* also ends with a zero byte */
    uint32_t length;
};

struct items {
    struct item *at;
    uint32_t count;
};

struct order {
    struct items mode, argv, variables, directory, fetch, paths, contents, source, user;
    void *mapping;
    size_t size;
    int file;
};

struct user {
    bool is_given; /* false in an environment with one user */
    uid_t uid;
    gid_t gid, groups[MAX_GROUPS];
    int group_count;
    char *home; /* NULL if it has no entry */
};

struct process {
    pid_t pid;
    unsigned long long started;
};

struct processes {
    struct process *at;
    size_t count, room;
};

/* order.c */
bool order_open(struct order *order, int file); /* always takes over the file */
void order_close(struct order *order);
bool order_is(const struct order *order, const char *mode);
char **order_strings(const struct items *items); /* free the result; NULL without memory */

/* channel.c: messages to the launcher */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool say_file(unsigned number, long long size, int file);
char *quoted(const char *text); /* a JSON string of at most MAX_MESSAGE; free the result */
ssize_t hear(int channel, void *text, size_t room, int *files, int *count);

/* files.c */
const char *workspace_mend(const struct user *user); /* a note if it was damaged, else NULL */
int write_all(int file, const struct item *content); /* 0, or -1 and errno */
char *files_write(const struct order *order, bool *is_full);                   /* NULL or an error message */
char *files_send(const struct order *order);                                   /* NULL or an error message */
char *directory_check(const char *path);                                       /* NULL or an error message */
bool write_area_is_full(void);

/* spawn.c */
pid_t spawn(char **argv, char **variables, const int *files, int count, bool has_terminal); /* -1 sets errno */
void set_oom_score(const char *score);
/* Add the user's home directory unless the request has another. Free the result; NULL without memory. */
char **variables_with_home(const struct items *given, const struct user *user);
/* Programs open their standard files again by path, which only the owner may. */
void give_files(const int *files, int count, const struct user *user);

/* users.c */
char *user_find(const struct items *given, struct user *user); /* NULL or an error message */
void user_forget(struct user *user);
void act_as(const struct user *user); /* for files and the start of a program, until act_as_root */
void act_as_root(const struct user *user);

/* source.c */
char *source_place(const struct order *order, int number, int *file); /* NULL sets errno; free the result */
void source_remove(void);

/* processes.c */
void others(struct processes *found); /* every living process except pid 1 */
bool processes_have(const struct processes *known, struct process one);
void processes_clear(struct processes *known);
void kill_all_but(const struct processes *before);

extern struct agent {
    const char *workspace, *area, *home;
    int workspace_file;
    bool keeps_processes;
} agent;

#endif
