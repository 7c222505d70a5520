/*
 * record.h: what a pool hands out and takes back, written down as it happens, if the program asked for it. See record.c.
 *
 * Off, it costs the road of an allocation one branch.
 *
 * LOCKING: the pool's lock for what is inline, none for the rest.
 */
#ifndef CENOTE_STATS_ACCOUNT_RECORD_H
#define CENOTE_STATS_ACCOUNT_RECORD_H

#include "pool/pool.h"

#define RECORD_BYTES 40

/* No device has 2^48 bytes. */
struct ring_entry {
    uint64_t ns;
    uint64_t at;
    uint64_t stream;                /* its key */
    uint64_t bytes : 48, op : 2, tag : MARK_TAG_BITS;
    uint64_t reserved;              /* by the pool then */
};
_Static_assert(sizeof(struct ring_entry) == RECORD_BYTES && MARK_TAG_BITS == 14, "48 + 2 + 14 bits are a word");
_Static_assert(BYTES_MAX >> 48 == 0, "the bytes of every block fit a record");

int  record_open(cenote_pool *pool);    /* as the options say, and CENOTE_TRACE */
void record_close(cenote_pool *pool);   /* what CENOTE_TRACE asked for is written */
void record_forget(cenote_pool *pool);

/* `op`: the letters of stats/records/records.h. */
__attribute__((noinline)) void record_write(cenote_pool *pool, char op, uint64_t at, uint64_t bytes, uint64_t stream, uint32_t tag);

static inline void record_taken(cenote_pool *pool, uint64_t at, const struct request *q, const struct arena *a)
{
    if (__builtin_expect(pool->recorder.ring.entries != NULL, false))
        record_write(pool, 'a', at, q->bytes, a->stream, mark_tag(q->mark));
}

static inline void record_given(cenote_pool *pool, const struct block_ref *w)
{
    if (__builtin_expect(pool->recorder.ring.entries != NULL, false))
        record_write(pool, 'f', w->start, w->requested, w->arena->stream, mark_tag(*w->mark));
}

static inline void record_used(cenote_pool *pool, const struct block_ref *w, uint64_t stream)
{
    if (__builtin_expect(pool->recorder.ring.entries != NULL, false))
        record_write(pool, 'u', w->start, w->requested, stream, mark_tag(*w->mark));
}

static inline void record_step(cenote_pool *pool)
{
    if (__builtin_expect(pool->recorder.ring.entries != NULL, false))
        record_write(pool, 's', 0, 0, 0, 0);
}

#endif
