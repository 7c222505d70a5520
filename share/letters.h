/* letters.h: datagrams between processes of one user; see letters.c. */
#ifndef CENOTE_SHARE_LETTERS_H
#define CENOTE_SHARE_LETTERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct letter {                     /* one datagram and what the kernel says of it */
    struct sockaddr_un from;
    socklen_t from_size;
    bool    trusted;                /* it is of a process of our user */
    bool    taken;                  /* for an importer: another user has the exporter's name */
    int     file;                   /* that came along, or -1 */
    ssize_t length;                 /* -1: none, see errno */
};

struct ear {                        /* a server's socket. The program may close its number, and give it to another file */
    int   number;
    ino_t inode;                    /* 0: there is none */
};

/* `key` 0: all letters are heard. */
int           letters_socket(uint64_t key);
bool          letters_listen(struct ear *ear, uint64_t key);
bool          letters_is_there(const struct ear *ear);
void          letters_leave(struct ear *ear);
bool          letters_has_key(const void *data, ssize_t length, uint64_t key);
bool          letters_is_our_user(uid_t user);
struct letter letters_receive(int s, void *data, size_t room, unsigned files);

#endif
