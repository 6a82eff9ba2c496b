/* Messages to the launcher, as one JSON packet each, and messages from other processes. */
#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union beside {
    struct cmsghdr header;
    char room[CMSG_SPACE(MAX_FILES * sizeof(int))];
};

/* Exit if the channel has no reader: the launcher has ended. Return false if too many files are in transit. */
static bool send_packet(const char *text, size_t length, int file)
{
    struct iovec part = {.iov_base = (void *)text, .iov_len = length};
    union beside beside;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memset(&beside, 0, sizeof beside);
    if (file >= 0) {
        message.msg_control = &beside;
        message.msg_controllen = CMSG_SPACE(sizeof file);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(header), &file, sizeof file);
    }
    while (sendmsg(CHANNEL, &message, MSG_NOSIGNAL) < 0) {
        if (errno == ETOOMANYREFS && file >= 0)
            return false;
        if (errno != EINTR)
            _exit(1);
    }
    return true;
}

void say(const char *format, ...)
{
    char *text;
    va_list arguments;

    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        _exit(1);
    send_packet(text, length, -1);
    free(text);
}

bool say_file(unsigned number, long long size, int file)
{
    char text[96];
    int length = snprintf(text, sizeof text, "{\"op\": \"file\", \"number\": %u, \"size\": %lld}", number, size);
    return send_packet(text, length, file);
}

/* Return the bytes of the UTF-8 character (RFC 3629) that starts here, or 0 if none does. */
static int character(const unsigned char *text)
{
    int length = *text < 0x80 ? 1 : *text < 0xc2 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf5 ? 4 : 0;

    for (int each = 1; each < length; each++)
        if ((text[each] & 0xc0) != 0x80)
            return 0;
    if ((*text == 0xe0 && text[1] < 0xa0) || (*text == 0xf0 && text[1] < 0x90) || (*text == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

char *quoted(const char *text)
{
    size_t length = strnlen(text, MAX_MESSAGE);
    char *made = malloc(6 * length + 3), *to = made;

    if (!made)
        _exit(1);
    *to++ = '"';
    for (size_t at = 0; at < length;) {
        unsigned char one = text[at];
        int bytes = character((const unsigned char *)text + at);
        if (one == '"' || one == '\\')
            to += sprintf(to, "\\%c", one);
        else if (one < 0x20 || one == 0x7f || bytes == 0 || at + bytes > length)
            to += sprintf(to, "\\u%04x", one);
        else
            to = mempcpy(to, text + at, bytes);
        at += bytes ? bytes : 1;
    }
    *to++ = '"';
    *to = 0;
    return made;
}

ssize_t hear(int channel, void *text, size_t room, int *files, int *count)
{
    struct iovec part = {.iov_base = text, .iov_len = room};
    union beside beside;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
    ssize_t length;

    do
        length = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    *count = 0;
    if (length < 0)
        return 0;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS) {
            int found = (int)((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(files + *count, CMSG_DATA(each), found * sizeof(int));
            *count += found;
        }
    return length;
}
