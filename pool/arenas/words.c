/*
 * words.c: the program's word of a block (cenote_request), as a handle or an index of its own.
 *
 * Few blocks have one, and the books of a block are small, because each allocation touches them: so words lie beside
 * the books, in an index by address that is empty in most pools. A word ends with its block.
 *
 * LOCKING: the pool's lock.
 */
#include "pool/arenas/words.h"

static struct word *word_of(const struct words *w, uint32_t number) { return table_at(&w->table, number); }

bool words_set(struct words *w, uint64_t block, uint64_t value)
{
    uint32_t number = index_reserve(&w->by_block, 1) ? table_take(&w->table) : 0;
    if (!number)
        return false;
    word_of(w, number)->value = value;
    index_add(&w->by_block, block, number);
    return true;
}

uint64_t words_of(const struct words *w, uint64_t block)
{
    uint32_t number = w->by_block.count ? index_find(&w->by_block, block) : 0;
    return number ? word_of(w, number)->value : 0;
}

void words_end(struct words *w, uint64_t block)
{
    uint32_t number = index_remove(&w->by_block, block);
    if (number)
        table_give(&w->table, number);
}
