/*
 * give_out.c: a block becomes the program's when the call that makes it returns.
 *
 * Before, there may be more to do without the pool's lock: watch functions are told, the block gets a word, the others
 * of cenote_alloc_many are made, which may fail. If the block is of a group, another thread, or a shortage function,
 * may reset that meanwhile. So it is held (label.h): a reset leaves it. No other call can name it yet.
 *
 *     made, MARK_HELD ---> ALLOCATED ---> its word ---> not held; the call returns
 *                                   \---> no host memory, or another block failed: freed, by alloc.c
 *
 * cenote_extend holds a block as well, from when it grows until EXTENDED is told of.
 *
 * LOCKING: none held; the pool's lock, in portions.
 */
#include "pool/calls/give_out.h"

#include "pool/arenas/locate.h"
#include "pool/calls/alloc.h"
#include "pool/life/pool.h"

/* LOCKING: the pool's lock. */
static bool note_word(cenote_pool *pool, uint64_t at, uint64_t word)
{
    return words_set(&pool->words, at, word);
}

/* LOCKING: the pool's lock. */
static bool let_go(cenote_pool *pool, uint64_t at, uint64_t word)
{
    struct block_ref w;
    (void)word;
    if (locate_in(pool, at, &w) && locate_at(pool, at, &w) == FOUND_LIVE)
        *w.mark &= ~MARK_HELD;
    return true;
}

/* *done: it returned true for all. An error: the context has ended, and the pool and its blocks with it. */
static int for_each(cenote_pool *pool, void *const *blocks, size_t count, uint64_t word,
                    bool (*function)(cenote_pool *, uint64_t, uint64_t), bool *done)
{
    *done = true;
    for (size_t i = 0; i < count && *done;) {
        int error = pool_take_lock(pool);
        if (error)
            return error;
        for (uint32_t left = lock_portion(MANY_IN_A_HOLD); left && i < count && *done; left--)
            *done = function(pool, (uint64_t)(uintptr_t)blocks[i++], word);
        lock_give(&pool->lock);
    }
    return CENOTE_OK;
}

void give_out(cenote_pool *pool, void *const *blocks, size_t count)
{
    bool done;
    (void)for_each(pool, blocks, count, 0, let_go, &done);
}

/* Each with the program's word (0: none). CENOTE_OUT_OF_HOST_MEMORY: they are held still, and the caller frees them. */
int give_out_with(cenote_pool *pool, void *const *blocks, size_t count, uint64_t word)
{
    bool noted = true;
    int error = word ? for_each(pool, blocks, count, word, note_word, &noted) : CENOTE_OK;
    if (error)
        return error;
    if (noted) {
        give_out(pool, blocks, count);
        return CENOTE_OK;
    }
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left for the word of a block");
}
