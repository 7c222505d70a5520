/*
 * threads.c: what a thread keeps for itself, so that taking and giving a block usually touches nothing that others touch: one of
 * jemalloc's caches for each node, the last few blocks it freed, and counts.
 *
 * It is all behind a lock of the thread's own, which nobody wants but those who look for memory before more is registered, and those who
 * read the counts. When a thread ends it gives back what it kept, and the structure waits for the next thread.
 *
 * LOCKING: a thread's lock is taken here. `lock` may be taken inside it, by pieces.c, also from jemalloc's hooks.
 */
#include <sched.h>

#include "base/check.h"
#include "host/host.h"

#define FLUSH_BLOCKS 64u        /* counts reach those of the node after so many blocks, or `flush_bytes` */

static _Thread_local struct {
    struct thread *thread;
    uint64_t of;            /* number of the host it belongs to: that may have been closed, and another opened */
} mine;
static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void flush(struct host *h, struct thread *t, enum flush what);

/* Nearly always free: a mutex would cost more than all else on the way of a block. */
static void enter(struct thread *t)
{
    while (atomic_exchange_explicit(&t->busy, true, memory_order_acquire))
        sched_yield();
}

static void leave(struct thread *t)
{
    atomic_store_explicit(&t->busy, false, memory_order_release);
}

void thread_drop_caches(struct thread *t)
{
    for (int node = 0; node < NODES_MOST; node++) {
        if (t->node[node].cache >= 0)
            cache_destroy(t->node[node].cache);
        t->node[node].cache = -1;
    }
}

static void thread_ends(void *arg)
{
    struct thread *t = arg;
    struct host *h = atomic_load(&host_opened);
    mine.thread = NULL;
    if (!h || h->number != mine.of || driver_is_forked())
        return;
    enter(t);
    flush(h, t, FLUSH_ALL);
    thread_drop_caches(t);
    leave(t);
    atomic_store(&t->taken, false);
}

static void make_key(void)
{
    pthread_key_create(&ending, thread_ends);
}

static struct thread *take_left(struct host *h)
{
    for (struct thread *t = atomic_load(&h->threads); t; t = t->next) {
        bool taken = false;
        if (atomic_compare_exchange_strong(&t->taken, &taken, true))
            return t;
    }
    return NULL;
}

static struct thread *make(struct host *h)
{
    struct thread *t = memory_map(sizeof(*t));
    if (!t)
        return NULL;
    atomic_store(&t->taken, true);
    for (int node = 0; node < NODES_MOST; node++)
        t->node[node].cache = -1;
    t->next = atomic_load(&h->threads);
    while (!atomic_compare_exchange_weak(&h->threads, &t->next, t))
        ;
    return t;
}

struct thread *thread_mine(struct host *h)
{
    if (mine.thread && mine.of == h->number)
        return mine.thread;
    pthread_once(&once, make_key);
    struct thread *t = take_left(h);
    if (!t)
        t = make(h);
    if (t && pthread_setspecific(ending, t)) {
        atomic_store(&t->taken, false);
        t = NULL;
    }
    mine.thread = t;
    mine.of = h->number;
    return t;
}

/* ---------------------------------------------------------------------------------------------------------------------- counts */

static void flush_quantity(struct node *n, int q, uint64_t in, uint64_t out)
{
    uint64_t total_in = in ? atomic_fetch_add_explicit(&n->in[q], in, memory_order_relaxed) + in : atomic_load(&n->in[q]);
    uint64_t total_out = out ? atomic_fetch_add_explicit(&n->out[q], out, memory_order_relaxed) + out : atomic_load(&n->out[q]);
    uint64_t current = total_in - total_out, peak = atomic_load_explicit(&n->peak[q], memory_order_relaxed);
    while ((int64_t)current > (int64_t)peak && !atomic_compare_exchange_weak(&n->peak[q], &peak, current))
        ;
}

/* LOCKING: the thread's. */
static void flush_counts(struct host *h, struct thread *t)
{
    t->unflushed = 0;
    for (int node = 0; node < h->nodes; node++) {
        struct per_node *p = &t->node[node];
        if (!p->in.blocks && !p->out.blocks)
            continue;
        flush_quantity(&h->node[node], 0, p->in.requested, p->out.requested);
        flush_quantity(&h->node[node], 1, p->in.allocated, p->out.allocated);
        flush_quantity(&h->node[node], 2, p->in.blocks, p->out.blocks);
        p->in = p->out = (struct tally){0};
    }
}

static void count(struct host *h, struct thread *t, int node, struct tally *tally, uint64_t requested, uint64_t allocated)
{
    tally->requested += requested;
    tally->allocated += allocated;
    tally->blocks++;
    if (++t->unflushed >= FLUSH_BLOCKS || tally->requested >= atomic_load_explicit(&h->node[node].flush_bytes, memory_order_relaxed))
        flush_counts(h, t);
}

/* ---------------------------------------------------------------------------------------------------------------------- blocks */

/* One of the blocks freed last, if it has that size; a large one may be a sixteenth larger. */
static uint64_t take_recent(const struct host *h, struct per_node *p, uint64_t *bytes)
{
    uint64_t most = *bytes > h->large ? *bytes + *bytes / 16 : *bytes;
    for (uint32_t i = p->recent_count; i-- > 0;) {
        struct recent r = p->recent[i];
        if (r.bytes < *bytes || r.bytes > most)
            continue;
        for (p->recent_count--; i < p->recent_count; i++)
            p->recent[i] = p->recent[i + 1];
        *bytes = r.bytes;
        return r.at;
    }
    return 0;
}

static int cache_of(struct per_node *p)
{
    if (p->cache == -1 && (p->cache = cache_create()) == -1)
        p->cache = -2;
    return p->cache;
}

static void let_go(struct host *h, struct per_node *p, struct recent freed)
{
    if (freed.bytes > h->large)
        piece_give(h, piece_at(h, freed.at));
    else
        arena_free((void *)freed.at, freed.bytes, cache_of(p));
}

static void give_recent(struct host *h, struct per_node *p, struct recent freed)
{
    if (p->recent_count == RECENT) {
        let_go(h, p, p->recent[0]);
        p->recent_count--;
        for (uint32_t i = 0; i < p->recent_count; i++)
            p->recent[i] = p->recent[i + 1];
    }
    p->recent[p->recent_count++] = freed;
}

/* `held` is what the block takes: whole pages of a large one. */
static uint64_t take(struct host *h, struct per_node *p, int node, uint64_t *held, uint32_t *claim, uint64_t *wanted)
{
    uint64_t at = take_recent(h, p, held);
    if (at)
        return at;
    if (*held <= h->large)
        return (uint64_t)arena_alloc(&h->node[node], cache_of(p), *held, claim, wanted);
    *wanted = *held;
    uint32_t piece = *claim ? piece_cut(h, *claim, *held, HOST_PAGE) : piece_take(h, node, *held, HOST_PAGE);
    if (piece && *claim)
        *claim = 0;
    return piece ? piece_of(h, piece)->at : 0;
}

/* NULL: `wanted` bytes have to be registered first. Takes from `claim`, a live piece, and sets it to 0, where it needs to. */
void *thread_alloc(struct host *h, struct thread *t, int node, uint64_t bytes, uint32_t *claim, uint64_t *wanted)
{
    struct per_node *p = &t->node[node];
    uint64_t held = round_up(bytes, bytes > h->large ? HOST_PAGE : HOST_GRAIN);
    enter(t);
    uint64_t at = take(h, p, node, &held, claim, wanted);
    if (at) {
        record *r = record_of(h, at);
        CHECK(!atomic_load(r)); /* handed out twice */
        if (bytes > h->large)
            atomic_store_explicit(r + 1, held, memory_order_relaxed);
        atomic_store_explicit(r, RECORD_LIVE | bytes, memory_order_release);
        count(h, t, node, &p->in, bytes, held);
    }
    leave(t);
    return (void *)at;
}

/* Its record says no more that it is live. */
void thread_free(struct host *h, struct thread *t, uint64_t at, uint64_t requested)
{
    int node = chunk_under(h, at)->node;
    struct per_node *p = &t->node[node];
    bool large = requested > h->large;
    record *r = record_of(h, at);
    uint64_t held = large ? atomic_load_explicit(r + 1, memory_order_relaxed) : round_up(requested, HOST_GRAIN);
    enter(t);
    count(h, t, node, &p->out, requested, held);
    if (large)
        atomic_store_explicit(r + 1, 0, memory_order_relaxed);
    atomic_store_explicit(r, 0, memory_order_release);
    give_recent(h, p, (struct recent){at, held});
    leave(t);
}

/* LOCKING: the thread's. */
static void flush(struct host *h, struct thread *t, enum flush what)
{
    flush_counts(h, t);
    for (int node = 0; what > FLUSH_COUNTS && node < h->nodes; node++) {
        struct per_node *p = &t->node[node];
        while (p->recent_count)
            let_go(h, p, p->recent[--p->recent_count]);
        if (what == FLUSH_ALL && p->cache >= 0)
            cache_flush(p->cache);
    }
}

void threads_flush(struct host *h, enum flush what)
{
    for (struct thread *t = atomic_load(&h->threads); t; t = t->next) {
        enter(t);
        flush(h, t, what);
        leave(t);
    }
    for (int node = 0; what == FLUSH_ALL && node < h->nodes; node++)
        arena_purge(&h->node[node]);
}

void threads_close(struct host *h)
{
    struct thread *next;
    for (struct thread *t = atomic_load(&h->threads); t; t = next) {
        next = t->next;
        memory_unmap(t, sizeof(*t));
    }
    mine.thread = NULL;
}
