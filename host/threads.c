/*
 * threads.c: what a thread keeps for itself, so that taking and giving a block usually touches nothing that others touch: one of
 * jemalloc's caches for each node, the last few blocks it freed, and counts.
 *
 * Another thread looks into it seldom: when it needs memory before more is registered, and when it reads the counts. So the owner enters with two
 * plain instructions, and the other thread pays: it says that it wants in, makes a barrier for all threads (base/barrier.c), after which either it
 * sees that the owner is busy or the owner sees that it is wanted. Where the system has no such barrier both write and read in one order for all
 * threads, which costs the owner as much as everything else it does for a block.
 *
 *     owner     busy = 1; is it wanted? then busy = 0, wait, again                  busy = 0
 *     other     wanted = 1 (one at a time); barrier; wait until not busy            wanted = 0
 *
 * When a thread ends it gives back what it kept, and the structure waits for the next thread. A program cannot know when that happens (a thread
 * that has been waited for may still be ending, and others end on their own), so it may be while pinned memory is closed: `host_opening` keeps
 * the two apart. A thread may call again while it ends, in destructors of its own, and begins anew. If it does so after the last round of destructors
 * that the system gives it, no call says that it has ended: its structure stays taken until pinned memory is closed. Its blocks do not: what it
 * kept is taken by those that need memory, as from any thread.
 *
 * LOCKING: `host_opening` while a thread ends. What a thread keeps is for its owner between enter and leave, and for another thread between
 * enter_other and leave_other. `lock` may be taken there, by pieces.c, also from jemalloc's hooks.
 */
#include <sched.h>
#include <unistd.h>

#include "base/barrier.h"
#include "base/check.h"
#include "host/host.h"

#define FLUSH_BLOCKS 64u        /* counts reach those of the node after so many blocks, or `flush_bytes` */

_Thread_local struct thread_here thread_here;
static pthread_key_t ending;    /* made when pinned memory is opened for the first time */

static void flush(struct host *h, struct thread *t, enum flush what);

static void enter(const struct host *h, struct thread *t)
{
    for (;;) {
        if (h->has_membarrier) {
            atomic_store_explicit(&t->busy, true, memory_order_relaxed);
            atomic_signal_fence(memory_order_seq_cst);
        } else
            atomic_store(&t->busy, true);
        if (!atomic_load(&t->wanted))
            return;
        atomic_store_explicit(&t->busy, false, memory_order_release);
        while (atomic_load(&t->wanted))
            sched_yield();
    }
}

static void leave(struct thread *t)
{
    atomic_store_explicit(&t->busy, false, memory_order_release);
}

/* A system that takes the call back (a filter that came later): a millisecond is longer than any processor keeps a write to itself. */
static void enter_other(const struct host *h, struct thread *t)
{
    while (atomic_exchange(&t->wanted, true))
        sched_yield();
    if (h->has_membarrier && !barrier_everywhere())
        usleep(1000);
    while (atomic_load(&t->busy))
        sched_yield();
}

static void leave_other(struct thread *t)
{
    atomic_store_explicit(&t->wanted, false, memory_order_release);
}

void thread_drop_caches(struct thread *t)
{
    for (int node = 0; node < NODES_MAX; node++) {
        if (t->node[node].cache >= 0)
            cache_destroy(t->node[node].cache);
        t->node[node].cache = -1;
    }
}

static void thread_ends(void *arg)
{
    struct thread *t = arg;
    thread_here.thread = NULL;
    if (driver_is_forked())
        return;
    lock_take(&host_opening);
    struct host *h = atomic_load(&host_opened);
    if (h && h->number == thread_here.of) {
        enter(h, t);
        flush(h, t, FLUSH_ALL);
        thread_drop_caches(t);
        leave(t);
        atomic_store(&t->taken, false);
    }
    lock_give(&host_opening);
}

/* False: the process has as many keys of threads as there can be. LOCKING: `host_opening`. */
bool threads_open(struct host *h)
{
    static bool has_key;
    has_key = has_key || !pthread_key_create(&ending, thread_ends);
    h->has_membarrier = barrier_everywhere();
    return has_key;
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
    for (int node = 0; node < NODES_MAX; node++)
        t->node[node].cache = -1;
    t->next = atomic_load(&h->threads);
    while (!atomic_compare_exchange_weak(&h->threads, &t->next, t))
        ;
    return t;
}

struct thread *thread_begins(struct host *h)
{
    struct thread *t = take_left(h);
    if (!t)
        t = make(h);
    if (t && pthread_setspecific(ending, t)) {
        atomic_store(&t->taken, false);
        t = NULL;
    }
    thread_here.thread = t;
    thread_here.of = t ? h->number : 0; /* what the key names is of a host that was closed: thread_ends must not take it for one of this */
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

/* LOCKING: entered, as owner or as another thread. */
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

/*
 * Counts a block that was taken, or given back. What has not been said is less than `flush_bytes` of blocks taken, so that peaks are right
 * to that; of blocks given back it may also be as much as the last one, or each pair of calls with a large block would say so twice.
 */
static void count_taken(struct host *h, struct thread *t, int node, uint64_t requested, uint64_t allocated)
{
    struct per_node *p = &t->node[node];
    p->in = (struct tally){p->in.requested + requested, p->in.allocated + allocated, p->in.blocks + 1};
    int64_t unsaid = (int64_t)(p->in.requested - p->out.requested);
    if (++t->unflushed >= FLUSH_BLOCKS || unsaid >= atomic_load_explicit(&h->node[node].flush_bytes, memory_order_relaxed))
        flush_counts(h, t);
}

static void count_given(struct host *h, struct thread *t, int node, uint64_t requested, uint64_t allocated)
{
    struct per_node *p = &t->node[node];
    p->out = (struct tally){p->out.requested + requested, p->out.allocated + allocated, p->out.blocks + 1};
    int64_t unsaid = (int64_t)(p->out.requested - p->in.requested);
    bool many = unsaid >= atomic_load_explicit(&h->node[node].flush_bytes, memory_order_relaxed) && unsaid > (int64_t)requested;
    if (++t->unflushed >= FLUSH_BLOCKS || many)
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

/*
 * NULL: `wanted` bytes have to be registered first; 0: that would not help (arena_alloc). Takes from `claim`, a live piece, and sets it to 0, where
 * it needs to.
 */
void *thread_alloc(struct host *h, struct thread *t, int node, uint64_t bytes, uint32_t *claim, uint64_t *wanted)
{
    struct per_node *p = &t->node[node];
    uint64_t held = round_up(bytes, bytes > h->large ? HOST_PAGE : HOST_GRAIN);
    enter(h, t);
    uint64_t at = take(h, p, node, &held, claim, wanted);
    if (at) {
        record *r = record_of(h, at);
        CHECK(!atomic_load(r)); /* handed out twice */
        if (bytes > h->large)
            atomic_store_explicit(r + 1, held, memory_order_relaxed);
        atomic_store_explicit(r, RECORD_LIVE | bytes, memory_order_release);
        count_taken(h, t, node, bytes, held);
    }
    leave(t);
    return (void *)at;
}

/* Its record says no more that it is live. LOCKING: entered, as owner or as another thread. */
static void give(struct host *h, struct thread *t, uint64_t at, uint64_t requested)
{
    int node = h->nodes > 1 ? chunk_under(h, at)->node : 0;
    struct per_node *p = &t->node[node];
    bool large = requested > h->large;
    record *r = record_of(h, at);
    uint64_t held = large ? atomic_load_explicit(r + 1, memory_order_relaxed) : round_up(requested, HOST_GRAIN);
    count_given(h, t, node, requested, held);
    if (large)
        atomic_store_explicit(r + 1, 0, memory_order_relaxed);
    atomic_store_explicit(r, 0, memory_order_release);
    give_recent(h, p, (struct recent){at, held});
}

void thread_free(struct host *h, struct thread *t, uint64_t at, uint64_t requested)
{
    enter(h, t);
    give(h, t, at, requested);
    leave(t);
}

/* For a thread that has no memory to keep anything: the block was some thread's, and there is one. */
void thread_free_at_another(struct host *h, uint64_t at, uint64_t requested)
{
    struct thread *t = atomic_load(&h->threads);
    enter_other(h, t);
    give(h, t, at, requested);
    leave_other(t);
}

/* LOCKING: entered, as owner or as another thread. */
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
        enter_other(h, t);
        flush(h, t, what);
        leave_other(t);
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
    thread_here.thread = NULL;
}

/* In the child of a fork that may go on: no thread is inside what another keeps. */
void threads_forked(struct host *h)
{
    for (struct thread *t = atomic_load(&h->threads); t; t = t->next) {
        atomic_store(&t->busy, false);
        atomic_store(&t->wanted, false);
    }
}
