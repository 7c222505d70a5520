/*
 * alloc.c: the road of one block: taken, used, found, given back; and what is tried when nothing fits.
 *
 *     what this thread and free pieces have
 *     blocks that devices have finished with, what other threads keep, what jemalloc keeps
 *     a new chunk                                   (pin.c gives back idle ones first, where a limit is reached)
 *     blocks that devices are using: wait for them  then once more from the top
 *
 * LOCKING: none is held here.
 */
#include "base/check.h"
#include "base/error.h"
#include "base/sized.h"
#include "host/host.h"

static int refuse_forked(void)
{
    return error_set(CENOTE_FORKED, 0, "this process is a fork of the one that owns the memory: start it anew (spawn) instead");
}

static void *alloc_slowly(struct host *h, struct thread *t, int device, int node, size_t bytes, uint64_t wanted, int *error)
{
    uint32_t claim = 0;
    uses_poll(h, t, true);
    threads_flush(h, FLUSH_PIECES);
    void *at = thread_alloc(h, t, node, bytes, &claim, &wanted);
    for (int round = 0; round < 2 && !at; round++) {
        if (round && ((*error = uses_wait(h, false)) == CENOTE_DEVICE_LOST))
            break;
        uses_poll(h, t, true);
        threads_flush(h, FLUSH_ALL);
        at = thread_alloc(h, t, node, bytes, &claim, &wanted);
        if (at)
            break;
        *error = pin_chunk(h, device, node, wanted, &claim);
        if (*error == CENOTE_EXITING || *error == CENOTE_DEVICE_LOST)
            break;
        if (*error)
            continue;
        at = thread_alloc(h, t, node, bytes, &claim, &wanted);
        if (claim)
            piece_give(h, claim); /* another thread gave back what we wanted */
        if (!at)
            *error = error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for bookkeeping");
    }
    return at;
}

/* What is registered for any device may be handed out for any other. `reset`: of the host, which another thread may take back meanwhile. */
static int refuse_reset(int reset)
{
    return error_set(CENOTE_DEVICE_LOST, 0, "the program has reset device %d, and what was pinned there is not pinned any more: free the blocks that "
                     "are there, and call cenote_host_trim", reset - 1);
}

static int fail(struct host *h, int node, int error)
{
    lock_take(&h->lock);
    h->node[node].ooms++;
    lock_give(&h->lock);
    return error;
}

int cenote_host_alloc(int device, size_t bytes, void **block)
{
    int error = CENOTE_OK;
    if (!block)
        return error_set(CENOTE_INVALID, 0, "block is NULL");
    struct host *h = host_get(&error);
    if (!h)
        return error;
    if (driver_is_exiting())
        return error_set(CENOTE_EXITING, 0, "the process is exiting; no driver call is made any more");
    int node = host_node(h, device, &error);
    if (node < 0)
        return error;
    if (!bytes) {
        *block = NULL;
        return CENOTE_OK;
    }
    if (bytes > RECORD_REQUESTED - HOST_PAGE)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "%zu bytes are more than any host has", bytes);
    int reset = atomic_load_explicit(&h->reset, memory_order_relaxed);
    if (reset)
        return refuse_reset(reset);
    struct thread *t = thread_mine(h);
    if (!t)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for bookkeeping");

    if (atomic_load_explicit(&h->pending, memory_order_relaxed))
        uses_poll(h, t, false);
    uint32_t claim = 0;
    uint64_t wanted = 0;
    void *at = thread_alloc(h, t, node, bytes, &claim, &wanted);
    if (!at && !wanted)
        error = error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "this thread is about to end, and jemalloc, from which blocks of %zu bytes come, has left "
                          "it: larger ones can be had", bytes);
    else if (!at)
        at = alloc_slowly(h, t, device, node, bytes, wanted, &error);
    reset = atomic_load_explicit(&h->reset, memory_order_relaxed);
    if (at && reset) { /* as this call may have found out */
        thread_free(h, t, (uint64_t)at, bytes);
        at = NULL;
        error = refuse_reset(reset);
    }
    if (!at)
        return fail(h, node, error);
    *block = at;
    return CENOTE_OK;
}

/* What is wrong with an address that no live block begins at. */
static int refuse_block(struct host *h, const void *block)
{
    cenote_host_block holding = {.start = NULL};
    if (!h || !host_holds(h, block))
        return error_set(CENOTE_NOT_OURS, 0, "%p was not handed out by cenote_host_alloc", block);
    if (cenote_host_find(block, &holding) == CENOTE_OK)
        return error_set(CENOTE_INTERIOR, 0, "%p is inside the block at %p, not at its start", block, holding.start);
    return error_set(CENOTE_DOUBLE_FREE, 0, "no block is live at %p: it was freed, or never handed out", block);
}

/* The opened host and the record of a block's start; NULL, and the caller is told why not by refuse_start. */
static inline struct host *find_start(const void *block, record **r)
{
    struct host *h = atomic_load_explicit(&host_opened, memory_order_acquire);
    if (!h || !host_holds(h, block) || (uint64_t)block % HOST_GRAIN || driver_is_forked())
        return NULL;
    *r = record_of(h, (uint64_t)block);
    return atomic_load_explicit(*r, memory_order_acquire) & RECORD_LIVE ? h : NULL;
}

static int refuse_start(const void *block)
{
    return driver_is_forked() ? refuse_forked() : refuse_block(atomic_load(&host_opened), block);
}

int cenote_host_free(void *block)
{
    record *r;
    struct thread *t;
    if (!block)
        return CENOTE_OK;
    struct host *h = find_start(block, &r);
    if (!h)
        return refuse_start(block);
    uint64_t word = atomic_fetch_and_explicit(r, ~RECORD_LIVE, memory_order_acq_rel);
    if (!(word & RECORD_LIVE)) /* two threads free it at once */
        return error_set(CENOTE_DOUBLE_FREE, 0, "the block at %p is free already", block);
    if (RECORD_USES(word))
        uses_add(h, (uint64_t)block, word);
    else if ((t = thread_mine(h)))
        thread_free(h, t, (uint64_t)block, word & RECORD_REQUESTED);
    else
        thread_free_at_another(h, (uint64_t)block, word & RECORD_REQUESTED);
    return CENOTE_OK;
}

int cenote_host_use(void *block, int device, cenote_stream stream)
{
    record *r;
    struct host *h = find_start(block, &r);
    return h ? uses_note(h, (uint64_t)block, device, stream) : refuse_start(block);
}

/* Blocks are found by their records; the one that holds an address starts there, or in the same piece before it. */
int(cenote_host_find)(const void *address, cenote_host_block *block, size_t size)
{
    uint64_t begin, bytes, at = (uint64_t)address / HOST_GRAIN * HOST_GRAIN;
    struct host *h = atomic_load_explicit(&host_opened, memory_order_acquire);
    if (driver_is_forked())
        return refuse_forked();
    int error = sized_check(size, "cenote_host_block");
    if (error || !block)
        return error ? error : error_set(CENOTE_INVALID, 0, "block is NULL");
    bool held = h && host_holds(h, address);
    uint64_t word = held ? atomic_load(record_of(h, at)) : 0;
    if (!(word & RECORD_LIVE) && held && piece_holding(h, at, &begin, &bytes)) {
        if ((atomic_load(record_of(h, begin)) & RECORD_REQUESTED) > h->large)
            at = begin; /* a large block is all of its piece */
        for (; at >= begin && !((word = atomic_load(record_of(h, at))) & RECORD_LIVE); at -= HOST_GRAIN)
            ;
    }
    if (!(word & RECORD_LIVE) || (uint64_t)address - at >= (word & RECORD_REQUESTED))
        return error_set(CENOTE_NOT_OURS, 0, "%p lies in no live block of pinned memory", address);
    const struct chunk *c = chunk_under(h, at);
    cenote_host_block found = {(void *)at, word & RECORD_REQUESTED, topology_system_number(h->topology, c->node), c->bound};
    sized_out(block, size, &found, sizeof(found));
    return CENOTE_OK;
}
