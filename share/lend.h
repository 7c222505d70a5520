/* lend.h: memory that processes of one user lend each other; see lend.c and wants.c. */
#ifndef CENOTE_SHARE_LEND_H
#define CENOTE_SHARE_LEND_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/pool.h"

#define LEND_CARD_BYTES 16 /* of a card's name: its UUID */

/* Letters of an asker and of a lender. */
#define WANT_MAGIC   0x746e6157u
#define WANT_VERSION 1u

struct want {
    uint64_t key_back;              /* for the answer */
    uint32_t magic, version;
    uint64_t number;                /* of this want: the same when it is asked again */
    uint64_t bytes;
    unsigned char card[LEND_CARD_BYTES];
};

struct answer {
    uint64_t key;                   /* the asker's */
    uint64_t number;                /* of the want */
    uint64_t gave;                  /* bytes that went to the driver for it */
};

/* --- share/lend.c */
void lend_pool_ends(const cenote_pool *pool);

/* --- share/wants.c */
struct lend_books {                 /* what the server knows of loans; constant */
    uint64_t (*give)(const unsigned char card[LEND_CARD_BYTES], uint64_t bytes);
    void (*stop)(void);             /* the process ends */
};
bool     wants_serve(const struct lend_books *books);       /* from now on this process hears what others want. False: errno says why */
extern uint64_t wants_patience;  /* ns that one call waits for lenders; tests make it shorter */
uint64_t wants_ask(cenote_pool *pool, uint64_t bytes, uint64_t *until); /* how many bytes of the pool's card others gave */

#endif
