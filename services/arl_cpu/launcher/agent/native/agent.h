/* The agent of an environment in C: what launcher/agent.py does behind its walls, in a tenth of the memory.
 *
 * One process, one action at a time. It reads no JSON: the launcher's messages to it are few and compared whole, and an
 * order (launcher/orders.py) is laid out so that its texts can be used where they lie.
 */
#ifndef TANGRAM_AGENT_H
#define TANGRAM_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHANNEL = 3, OOM_SCORE = 4, MAX_FILES = 16, MAX_MESSAGE = 2000 };

struct item {
    const char *text; /* ends with a zero, too */
    uint32_t length;
};

struct items {
    struct item *at;
    uint32_t count;
};

struct order {
    struct items mode, argv, variables, directory, fetch, paths, contents, source;
    void *mapping;
    size_t size;
    int file;
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
bool order_open(struct order *order, int file); /* takes the file over in any case */
void order_close(struct order *order);
bool order_is(const struct order *order, const char *mode);
char **order_strings(const struct items *items); /* to be freed; NULL without memory */

/* channel.c: what the launcher hears */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool say_file(unsigned number, long long size, int file);
char *quoted(const char *text); /* as a JSON string, cut at MAX_MESSAGE; to be freed */
ssize_t hear(int channel, void *text, size_t room, int *files, int *count);

/* files.c */
int workspace_open(const char *root);
char *files_write(const struct order *order, bool *is_full);                   /* NULL, or what was wrong */
char *files_send(const struct order *order);                                   /* NULL, or a word on the limit */
bool write_area_is_full(void);

/* spawn.c */
pid_t spawn(char **argv, char **variables, const int *files, int count, bool has_terminal); /* or -1 with errno */

/* interpreter.c: a Python that stays, and runs each source in a fork of it */
struct answer {
    int32_t kind, value, peak_kib;
};
enum { STARTED, EXITED, NO_PROCESS };
extern pid_t interpreter_pid; /* 0 where there is none */
extern int interpreter_channel;
int interpreter_run(const struct order *order, const int *files); /* 0, or an errno */
bool interpreter_answer(struct answer *answer);                   /* false when there is none now */
void interpreter_end(void);
void interpreter_reaped(void);

/* processes.c */
void others(struct processes *found); /* every living process here but pid 1 and the interpreter */
bool processes_have(const struct processes *known, struct process one);
void processes_clear(struct processes *known);
void kill_all_but(const struct processes *before);

extern struct agent {
    const char *workspace, *area;
    int workspace_file;
    bool keeps_processes;
} agent;

#endif
