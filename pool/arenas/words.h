/*
 * words.h: the program's word of a block, see words.c.
 *
 *     a block: allocated with a word, words_set ---> freed, words_end
 *
 * OWNER: words.c. LOCKING: the pool's lock.
 */
#ifndef CENOTE_POOL_ARENAS_WORDS_H
#define CENOTE_POOL_ARENAS_WORDS_H

#include "base/index.h"
#include "base/memory.h"

#define WORDS_MAX (1u << 24) /* blocks with one, at a time */

struct word {
    uint32_t unused;            /* the table chains words given back through it */
    uint64_t value;
};

struct words {
    struct index by_block;      /* block address -> word */
    struct table table;
};

bool     words_set(struct words *w, uint64_t block, uint64_t value); /* false: no host memory, and nothing changed */
uint64_t words_of(const struct words *w, uint64_t block);            /* 0: none */
void     words_end(struct words *w, uint64_t block);

#endif
