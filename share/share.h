/* share.h: what processes say to each other about exported blocks. Explained in share/export.c. */
#ifndef CENOTE_SHARE_SHARE_H
#define CENOTE_SHARE_SHARE_H

#include <cenote/share.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "pool/pool.h"

#define SHARE_MAGIC   0x65724853u
#define SHARE_VERSION 3u

/* What a cenote_share holds. */
struct share_message {
    uint32_t magic, version;
    uint64_t exporter[2];           /* drawn at random by the process that exports: the name of its socket, and the key to it */
    uint64_t block;                 /* where it begins there */
    uint64_t generation;            /* of the process: never the same for two exports */
    uint64_t offset;                /* of the exported address in the block */
    int64_t  process;               /* for people to read */
    uint64_t sum;                   /* over all before */
};

_Static_assert(sizeof(struct share_message) == sizeof(cenote_share), "no padding");

/* A letter begins with the key to its receiver: the kernel throws away what does not (share/socket.c). */
struct share_request {
    uint64_t key;                   /* the exporter's */
    uint64_t key_back;              /* for the reply */
    uint32_t magic, version;
    uint64_t block, generation;     /* as in the message */
    uint64_t page;                  /* under the block, from 1: its file descriptor is wanted; 0: none */
};

struct share_reply {
    uint64_t key;                   /* the importer's */
    uint32_t magic;
    int32_t  error;                 /* enum cenote_error; if not 0 nothing below counts but `result` */
    int32_t  result;                /* the CUresult behind it */
    uint32_t shift;                 /* log2 of the size of its smallest pages; 0: a segment, which counts as one page */
    uint32_t span_shift;            /* log2 of how many of that size the page has that was asked for */
    uint32_t unit_shift;            /* the most that can be. So much more than the block's own bytes there may be before and behind it */
    uint64_t pages;                 /* of that size, under the block */
    uint64_t serial;                /* of the first one: never the same for two pages in the life of the exporter */
    uint64_t lead;                  /* bytes from where the first one begins to the block */
    uint64_t bytes;                 /* of the block */
    CUipcMemHandle segment;
};

/* --- share/export.c */
void share_seal(struct share_message *m);
int  share_unseal(const cenote_share *share, size_t length, struct share_message *m);
void share_answer(const void *request, size_t length, struct share_reply *reply, int *file);
void share_stop(void);

/* --- share/socket.c */
extern int share_patience;          /* how many tenths of a second an importer waits for an answer */
struct share_books {                /* what the server knows of exports; constant */
    void (*answer)(const void *request, size_t length, struct share_reply *reply, int *file);
    void (*stop)(void);             /* the process ends */
};
int  share_serve(const struct share_books *books, uint64_t exporter[2]);
bool share_is_own(const uint64_t exporter[2]);
int  share_ask(const struct share_message *m, uint64_t page, struct share_reply *reply, int *file);
bool share_is_sound(const struct share_reply *reply, size_t length);

/* --- share/owner.c */
bool share_owner(const char *name, size_t length, uid_t *user);

#endif
