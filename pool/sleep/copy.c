/*
 * copy.c: what lay on a page, in host memory, while the page sleeps: runs of live bytes, one behind the other. A run
 * of blocks that touch is one.
 *
 *     device ---> a stage, pinned ---> the copy ---> a stage ---> device
 *
 * The courier carries the bytes; a page that leaves is copied to one stage while the host takes the page before it
 * from the other.
 *
 * LOCKING: the turn; the pool's lock only around looks.
 */
#include "pool/sleep/copy.h"

#include <string.h>

#include "base/check.h"

#define SMALL (1u << 20)        /* see CENOTE_DISCARD in cenote/sleep.h */

struct run {
    uint32_t at, blocks;        /* in units of BLOCK_BYTES, from the start of the page */
};

static struct run *runs_of(struct sleep_copy *copy) { return (struct run *)(copy + 1); }
static const struct run *runs_in(const struct sleep_copy *copy) { return (const struct run *)(copy + 1); }
static const char *contents_of(const struct sleep_copy *copy) { return (const char *)(runs_in(copy) + copy->runs); }

/* --------------------------------------------------------------------------------------------------------- the runs */

/* A block is small by what was asked for: it may have got much more. Slabs are of small blocks alone. */
static bool is_kept(const struct sleepers *s, const struct block *b)
{
    if (s->what.contents == CENOTE_DISCARD)
        return b->state == BLOCK_SLAB || b->requested < SMALL;
    return s->what.contents != CENOTE_DISCARD_ALL;
}

/* Blocks that lie on the page, and bytes of those that are kept. LOCKING: the pool's lock. */
static uint32_t count_blocks(const struct sleepers *s, struct under u, uint64_t *kept)
{
    uint32_t count = 0;
    uint64_t from;
    *kept = 0;
    for (const struct block *b; (b = under_next(s->pool, &u)); count++)
        *kept += is_kept(s, b) ? under_bytes(&u, b, &from) : 0;
    return count;
}

/* Blocks may have been freed since they were counted, but none have come. LOCKING: the pool's lock. */
static void list_runs(const struct sleepers *s, struct under u, struct sleep_copy *copy, uint32_t most)
{
    struct run *run = runs_of(copy) - 1;
    uint64_t from;
    for (const struct block *b; (b = under_next(s->pool, &u));) {
        uint32_t blocks = (uint32_t)(under_bytes(&u, b, &from) / BLOCK_BYTES);
        uint32_t at = (uint32_t)((from - u.at) / BLOCK_BYTES);
        if (!is_kept(s, b)) {
            copy->discarded += (uint64_t)blocks * BLOCK_BYTES;
            continue;
        }
        if (copy->runs && run->at + run->blocks == at) {
            run->blocks += blocks;
        } else {
            *++run = (struct run){at, blocks};
            copy->runs++;
        }
        copy->kept += (uint64_t)blocks * BLOCK_BYTES;
    }
    CHECK(copy->runs <= most);
}

/*
 * Room for what is to be kept of a page that no arena may use any more, with its blocks at that slot: the runs are
 * listed, the bytes are not there yet. NULL: no host memory. LOCKING: the pool's lock is taken here.
 */
struct sleep_copy *copy_make(const struct sleepers *s, uint32_t page, struct slot_ref at)
{
    cenote_pool *pool = s->pool;
    uint64_t kept;
    lock_take(&pool->lock);
    uint32_t count = count_blocks(s, under_of(pool, page, at), &kept);
    lock_give(&pool->lock);
    uint64_t bytes = sizeof(struct sleep_copy) + count * sizeof(struct run) + kept;
    struct sleep_copy *copy = memory_map(bytes);
    if (!copy)
        return NULL;
    copy->mapped = bytes;
    lock_take(&pool->lock);
    struct under under = under_of(pool, page, at);
    copy->at = under.at;
    copy->arena = region_of(&pool->store.pages, at.region)->arena;
    copy->taken = arena_of(pool, copy->arena)->taken;
    copy->is_constant = s->what.contents == CENOTE_CONSTANT;
    list_runs(s, under, copy, count);
    lock_give(&pool->lock);
    return copy;
}

/*
 * The copy has all that lies on the page at that slot: its arena has given out no block since, and the page has not
 * left the arena, for it would come back to it with a block. LOCKING: the pool's lock is taken here.
 */
bool copy_is_whole(cenote_pool *pool, const struct sleep_copy *copy, struct slot_ref at)
{
    lock_take(&pool->lock);
    const struct region *r = region_of(&pool->store.pages, at.region);
    bool is_whole = copy->is_constant && copy->arena == r->arena && copy->at == region_slot_at(r, at.slot) &&
                    copy->taken == arena_of(pool, r->arena)->taken;
    lock_give(&pool->lock);
    return is_whole;
}

void copy_drop(struct sleep_copy *copy)
{
    memory_unmap(copy, copy->mapped);
}

/* Those of pages that are gone. LOCKING: the pool's lock is taken here. */
void copy_drop_all(cenote_pool *pool)
{
    lock_take(&pool->lock);
    struct sleep_copy *gone = pages_take_copies(&pool->store.pages);
    lock_give(&pool->lock);
    pages_unmap_copies(gone);
}

/* -------------------------------------------------------------------------------------------------------- the bytes */

/* The device begins to write what is to be kept to the stage. */
CUresult copy_begin(cenote_pool *pool, const struct sleep_copy *copy, uint32_t stage)
{
    CUresult result = CUDA_SUCCESS;
    char *to = copy->kept ? courier_stage(pool, stage) : NULL;
    for (uint32_t i = 0; i < copy->runs && !result; i++) {
        struct run run = runs_in(copy)[i];
        uint64_t bytes = (uint64_t)run.blocks * BLOCK_BYTES;
        result = courier_fetch(pool, stage, to, copy->at + (uint64_t)run.at * BLOCK_BYTES, bytes);
        to += bytes;
    }
    return result;
}

/* The host takes it from the stage. */
void copy_end(cenote_pool *pool, struct sleep_copy *copy, uint32_t stage)
{
    if (copy->kept)
        memcpy((char *)(runs_of(copy) + copy->runs), courier_stage(pool, stage), copy->kept);
}

/* The device begins to read from the stage what was kept, and puts it where it was. */
CUresult copy_back(cenote_pool *pool, const struct sleep_copy *copy, uint32_t stage)
{
    CUresult result = CUDA_SUCCESS;
    const char *from = courier_stage(pool, stage);
    memcpy(courier_stage(pool, stage), contents_of(copy), copy->kept);
    for (uint32_t i = 0; i < copy->runs && !result; i++) {
        struct run run = runs_in(copy)[i];
        uint64_t bytes = (uint64_t)run.blocks * BLOCK_BYTES;
        result = courier_bring(pool, stage, copy->at + (uint64_t)run.at * BLOCK_BYTES, from, bytes);
        from += bytes;
    }
    return result;
}

/* The bytes of the page from that address on, which are of one block. False: they were not kept. */
bool copy_read(const struct sleep_copy *copy, uint64_t from, char *to, uint64_t bytes)
{
    const char *contents = contents_of(copy);
    for (uint32_t i = 0; i < copy->runs; i++) {
        struct run run = runs_in(copy)[i];
        uint64_t at = copy->at + (uint64_t)run.at * BLOCK_BYTES, kept = (uint64_t)run.blocks * BLOCK_BYTES;
        if (at <= from && from + bytes <= at + kept) {
            memcpy(to, contents + (from - at), bytes);
            return true;
        }
        contents += kept;
    }
    return false;
}
