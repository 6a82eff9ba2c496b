/* The format of a request in its file. */
#include "agent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool take_number(const struct order *order, size_t *at, uint32_t *number)
{
    if (order->size - *at < sizeof *number)
        return false;
    memcpy(number, (const char *)order->mapping + *at, sizeof *number);
    *at += sizeof *number;
    return true;
}

static bool take_items(const struct order *order, size_t *at, struct items *items)
{
    if (!take_number(order, at, &items->count) || items->count > order->size / sizeof(uint32_t))
        return false;
    items->at = calloc(items->count + 1, sizeof *items->at);
    if (!items->at)
        return false;
    for (uint32_t each = 0; each < items->count; each++) {
        struct item *item = &items->at[each];
        if (!take_number(order, at, &item->length) || order->size - *at <= item->length)
            return false;
        item->text = (const char *)order->mapping + *at;
        *at += item->length + 1;
    }
    return true;
}

bool order_open(struct order *order, int file)
{
    struct stat state;
    size_t at = 0;
    struct items *lists[] = {&order->mode,  &order->argv,  &order->variables, &order->directory,
                             &order->fetch, &order->paths, &order->contents,  &order->source,
                             &order->user};

    memset(order, 0, sizeof *order);
    order->file = file;
    order->mapping = MAP_FAILED;
    if (fstat(file, &state) == 0 && state.st_size > 0) {
        order->size = state.st_size;
        order->mapping = mmap(NULL, order->size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (order->mapping == MAP_FAILED)
        return false;
    for (size_t each = 0; each < sizeof lists / sizeof *lists; each++)
        if (!take_items(order, &at, lists[each]))
            return false;
    return order->mode.count == 1 && order->directory.count == 1 && order->source.count == 1 &&
           order->paths.count == order->contents.count;
}

void order_close(struct order *order)
{
    struct items *lists[] = {&order->mode,  &order->argv,  &order->variables, &order->directory,
                             &order->fetch, &order->paths, &order->contents,  &order->source,
                             &order->user};

    for (size_t each = 0; each < sizeof lists / sizeof *lists; each++)
        free(lists[each]->at);
    if (order->mapping && order->mapping != MAP_FAILED)
        munmap(order->mapping, order->size);
    if (order->file >= 0)
        close(order->file);
    memset(order, 0, sizeof *order);
    order->file = -1;
}

bool order_is(const struct order *order, const char *mode)
{
    return strcmp(order->mode.at[0].text, mode) == 0;
}

char **order_strings(const struct items *items)
{
    char **strings = calloc(items->count + 1, sizeof *strings);
    if (strings)
        for (uint32_t each = 0; each < items->count; each++)
            strings[each] = (char *)items->at[each].text;
    return strings;
}
