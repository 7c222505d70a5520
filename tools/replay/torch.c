/*
 * torch.c: models of PyTorch's caching allocator: as it is by default, and with expandable segments.
 *
 * The models say where blocks lie and how much is reserved; they store nothing. Requests are rounded to 512 bytes. Those up to 1 MiB go to the
 * small pool of their stream, larger ones to its large pool; a free block serves only its pool and stream. The smallest free block that is large
 * enough is taken, of equal ones that at the lowest address (or another: replay_plan.ties), and split if the rest is worth it.
 *
 *   native       without such a block: a segment of 2 MiB for small requests, of 20 MiB for those below 10 MiB, else of a multiple of 2 MiB
 *   expandable   without such a block: the addresses of the pool and stream are mapped further, by pages of 2 MiB, or 20 MiB in the large pool
 *
 * Memory goes back only when the device has no more: then all free segments or pages go back, and the request is tried again. A block that
 * another stream used comes back at the first allocation after the device has finished that use.
 *
 * The models add up the prices of driver calls: cuMemAlloc and cuMemFree for a segment; for a page the calls that make, map and open it, and those
 * that unmap and release it; for each free that another stream delays an event, and the calls that ask whether it is complete.
 *
 * A trace may be the recording of a card (replay_plan.recorded). Then its first records, `laid` of them, set up the memory that the card
 * held before: each lays a piece, with address and size, behind the one before; a segment begins where the column `reserved` grows, and is
 * of the large pool if the tag is 1. Frees among them make pieces free. After that a step says that the cache was given back, a new
 * segment lies where the card's did, as long as both hold the same, and memory is never short: the card says when it was.
 *
 * This is a model, not the allocator's code; tests/python/test_waste.py compares it with the real allocator. Settings are the defaults; one device.
 *
 * LOCKING: none.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"
#include "tools/replay/models.h"

#define MIB (1ull << 20)
#define ROUNDING 512
#define SMALL_MAX MIB                      /* of a request; and the least that is worth splitting off a large native block */
#define SMALL_SEGMENT (2 * MIB)
#define LARGE_SEGMENT (20 * MIB)
#define LARGE_OWN (10 * MIB)                /* from here on a request has a segment of its own size */
#define ADDRESSES_APART (1ull << 50)        /* segments that grow lie so far apart */

struct block {
    struct block *before, *after; /* in its segment, by address; NULL: none */
    uint64_t      at, size;
    uint64_t      age;            /* of equal blocks that of the lowest age comes first */
    uint32_t      pool;
    bool          taken, mapped;
    uint64_t      due;            /* while pending: when the device is done; */
    struct block *next_pending;
};

/* Free blocks of one stream and size class, in order of size and address. */
struct pool {
    struct block **free;
    uint32_t       count, room;
    struct block  *first;         /* of its expandable segment; NULL: none yet */
    uint64_t       base;          /* where that begins */
};

struct prices {
    uint64_t segment, segment_back, addresses, page, page_back, event, question; /* ns */
};

struct model {
    struct prices        prices;
    uint64_t             cost;      /* ns, so far */
    struct pool         *pools;     /* stream * 2 + is large */
    struct block       **blocks;    /* by the trace's numbers */
    bool                *used;      /* on another stream, likewise */
    struct block        *pending;   /* freed, and the device is not done; in order */
    struct block       **pending_end;
    uint64_t             capacity, reserved, address, now, lag, live, ages;
    enum replay_ties     ties;
    bool                 expandable, recorded, trims, falls, no_memory, cannot_lie;
    struct block        *laid;      /* the last piece of what the card held before; NULL: none */
    struct replay_result *result;
};

static bool is_large(const struct block *b)
{
    return b->pool % 2;
}

/* ----------------------------------------------------------------------------------------------------------------- free blocks */

/* The index of the first free block that is larger than `size`, or of that size and not before `age` and `at`. */
static uint32_t place_of(const struct pool *pool, uint64_t size, uint64_t age, uint64_t at)
{
    uint32_t low = 0, high = pool->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const struct block *b = pool->free[middle];
        if (b->size != size ? b->size < size : b->age != age ? b->age < age : b->at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_free(struct model *m, struct block *b)
{
    struct pool *pool = &m->pools[b->pool];
    if (pool->count == pool->room) {
        uint32_t room = pool->room ? pool->room * 2 : 64;
        struct block **larger = realloc(pool->free, room * sizeof(*larger));
        if (!larger) {
            m->no_memory = true;
            return;
        }
        pool->free = larger;
        pool->room = room;
    }
    uint32_t place = place_of(pool, b->size, b->age, b->at);
    memmove(&pool->free[place + 1], &pool->free[place], (pool->count++ - place) * sizeof(b));
    pool->free[place] = b;
}

static void remove_free(struct model *m, const struct block *b)
{
    struct pool *pool = &m->pools[b->pool];
    uint32_t place = place_of(pool, b->size, b->age, b->at);
    while (pool->free[place] != b) /* segments of a recording may share addresses, once the model differs from the card */
        place++;
    memmove(&pool->free[place], &pool->free[place + 1], (--pool->count - place) * sizeof(b));
}

static struct block *make_block(struct model *m, uint32_t pool, uint64_t at, uint64_t size)
{
    struct block *b = calloc(1, sizeof(*b));
    m->no_memory |= !b;
    if (b)
        *b = (struct block){.at = at, .size = size, .pool = pool, .mapped = true, .age = m->ties == TIES_ADDRESS ? 0 : ++m->ages};
    return b;
}

/* Makes everything behind the first `size` bytes a block of its own, on no list. NULL: no host memory. PyTorch's object stays with the rest. */
static struct block *cut(struct model *m, struct block *b, uint64_t size)
{
    struct block *rest = make_block(m, b->pool, b->at + size, b->size - size);
    if (!rest)
        return NULL;
    uint64_t new_age = rest->age;
    rest->age = b->age;
    b->age = m->ties == TIES_PIECE ? new_age : b->age;
    rest->mapped = b->mapped;
    rest->before = b;
    rest->after = b->after;
    if (rest->after)
        rest->after->before = rest;
    b->after = rest;
    b->size = size;
    return rest;
}

/* Joins `b` and the next block; `next` is freed. */
static void join(struct model *m, struct block *b, struct block *next)
{
    b->size += next->size;
    b->after = next->after;
    if (b->after)
        b->after->before = b;
    if (m->pools[b->pool].first == next)
        m->pools[b->pool].first = b;
    free(next);
}

static bool can_join(const struct block *a, const struct block *b)
{
    return a && b && !a->taken && !b->taken && a->mapped == b->mapped;
}

/* With its free neighbours, mapped as it is. It is on no list itself, they are if they are mapped. */
static struct block *join_around(struct model *m, struct block *b)
{
    if (can_join(b, b->after)) {
        if (b->mapped)
            remove_free(m, b->after);
        join(m, b, b->after);
    }
    if (can_join(b->before, b)) {
        struct block *before = b->before;
        if (b->mapped)
            remove_free(m, before);
        before->age = b->age;
        join(m, before, b);
        return before;
    }
    return b;
}

static void put_free(struct model *m, struct block *b)
{
    b->taken = false;
    add_free(m, join_around(m, b));
}

/* --------------------------------------------------------------------------------------------------------------------- reserving */

static bool reserve(struct model *m, uint64_t bytes)
{
    if (m->reserved + bytes > m->capacity)
        return false;
    m->reserved += bytes;
    return true;
}

static struct block *new_segment(struct model *m, uint32_t pool, uint64_t size, const struct record *r)
{
    uint64_t own = (size + SMALL_SEGMENT - 1) / SMALL_SEGMENT * SMALL_SEGMENT;
    uint64_t bytes = size <= SMALL_MAX ? SMALL_SEGMENT : size < LARGE_OWN ? LARGE_SEGMENT : own;
    m->cost += m->prices.segment;
    if (!reserve(m, bytes))
        return NULL;
    if (m->recorded && r->reserved == m->reserved)
        return make_block(m, pool, r->address, bytes);
    if (m->falls)
        return make_block(m, pool, m->address -= bytes, bytes);
    m->address += bytes;
    return make_block(m, pool, m->address - bytes, bytes);
}

static uint64_t page_of(const struct block *b)
{
    return is_large(b) ? LARGE_SEGMENT : SMALL_SEGMENT;
}

/* The first pages of an unmapped block, as many as `size` needs; joined with its neighbours and free. */
static struct block *map_pages(struct model *m, struct block *b, uint64_t size)
{
    uint64_t page = page_of(b), bytes = (size + page - 1) / page * page;
    bytes = bytes < b->size ? bytes : b->size; /* mapped pages may follow */
    m->cost += bytes / page * m->prices.page;
    if (!reserve(m, bytes))
        return NULL;
    if (bytes < b->size && !cut(m, b, bytes))
        return NULL;
    b->mapped = true;
    b = join_around(m, b);
    add_free(m, b);
    return b;
}

/* The lowest addresses with enough room, which begin with an unmapped block or with the free one before it. */
static struct block *find_room(struct block *first, uint64_t size)
{
    for (struct block *b = first; b; b = b->after) {
        if (b->taken || (b->mapped && !(b->after && !b->after->mapped)))
            continue;
        uint64_t bytes = 0;
        for (struct block *c = b; c && !c->taken && bytes < size; c = c->after)
            bytes += c->size;
        if (bytes >= size)
            return b;
    }
    return NULL;
}

/* False: no host memory. */
static bool has_addresses(struct model *m, uint32_t number, const struct record *r)
{
    struct pool *pool = &m->pools[number];
    uint64_t page = number % 2 ? LARGE_SEGMENT : SMALL_SEGMENT;
    if (pool->first)
        return true;
    pool->base = m->recorded ? r->address : number * ADDRESSES_APART;
    pool->first = make_block(m, number, pool->base, ADDRESSES_APART / page * page);
    if (pool->first)
        pool->first->mapped = false;
    m->cost += m->prices.addresses;
    return pool->first;
}

/* On no list; NULL: the device has no more. */
static struct block *grow(struct model *m, uint32_t number, uint64_t size, const struct record *r)
{
    struct pool *pool = &m->pools[number];
    if (!has_addresses(m, number, r))
        return NULL;
    struct block *b = find_room(pool->first, size);
    if (b && !b->mapped)
        b = map_pages(m, b, size);
    while (b && b->size < size)
        b = map_pages(m, b->after, size - b->size);
    if (b)
        remove_free(m, b);
    return b;
}

/* ------------------------------------------------------------------------------------------------------------------- giving back */

/* The whole pages of a free block go back; its ends stay free. */
static void unmap_pages(struct model *m, struct block *b)
{
    uint64_t page = page_of(b), base = m->pools[b->pool].base;
    uint64_t begin = (b->at - base + page - 1) / page * page + base, end = (b->at - base + b->size) / page * page + base;
    struct block *rest;
    if (begin >= end)
        return;
    remove_free(m, b);
    if (begin > b->at) {
        rest = cut(m, b, begin - b->at);
        add_free(m, b);
        b = rest;
    }
    if (b && b->at + b->size > end && (rest = cut(m, b, end - b->at)))
        add_free(m, rest);
    if (!b)
        return;
    m->reserved -= end - begin;
    m->cost += (end - begin) / page * m->prices.page_back;
    b->mapped = false;
    join_around(m, b);
}

/* All pools of all streams. */
static void give_back(struct model *m, uint32_t pools)
{
    for (uint32_t i = 0; i < pools && !m->no_memory; i++) {
        struct pool *pool = &m->pools[i];
        uint32_t count = pool->count;
        struct block **all = malloc((count + 1) * sizeof(*all));
        m->no_memory |= !all;
        if (!all)
            return;
        if (count)
            memcpy(all, pool->free, count * sizeof(*all));
        for (uint32_t j = 0; j < count; j++) {
            struct block *b = all[j];
            if (m->expandable)
                unmap_pages(m, b);
            else if (!b->before && !b->after) {
                remove_free(m, b);
                m->reserved -= b->size;
                m->cost += m->prices.segment_back;
                free(b);
            }
        }
        free(all);
    }
}

/* ----------------------------------------------------------------------------------------------------------------------- calls */

static void settle(struct model *m, uint64_t now)
{
    while (m->pending && m->pending->due <= now) {
        struct block *b = m->pending;
        m->pending = b->next_pending;
        if (!m->pending)
            m->pending_end = &m->pending;
        m->cost += m->prices.question;
        put_free(m, b);
    }
    m->cost += m->pending ? m->prices.question : 0;
}

/* The size to which a block can grow: the addresses behind it may be unmapped. */
static uint64_t growable(const struct block *b)
{
    return b->size + (b->after && !b->after->mapped ? b->after->size : 0);
}

static struct block *find_free(struct model *m, uint32_t number, uint64_t size)
{
    struct pool *pool = &m->pools[number];
    uint32_t place = place_of(pool, size, 0, 0);
    if (place == pool->count)
        return NULL;
    if (m->expandable)
        while (place + 1 < pool->count && growable(pool->free[place + 1]) < growable(pool->free[place]))
            place++;
    struct block *b = pool->free[place];
    remove_free(m, b);
    return b;
}

static struct block *more(struct model *m, uint32_t pool, uint64_t size, const struct record *r)
{
    return m->expandable ? grow(m, pool, size, r) : new_segment(m, pool, size, r);
}

static void play_alloc(struct model *m, const struct record *r, uint32_t pools)
{
    uint64_t size = r->bytes < ROUNDING ? ROUNDING : (r->bytes + ROUNDING - 1) / ROUNDING * ROUNDING;
    uint32_t pool = r->stream * 2 + (size > SMALL_MAX);
    settle(m, m->now);
    struct block *b = find_free(m, pool, size);
    if (!b)
        b = more(m, pool, size, r);
    if (!b && !m->no_memory) {
        settle(m, UINT64_MAX); /* waits for the device */
        give_back(m, pools);
        b = more(m, pool, size, r);
    }
    m->blocks[r->block] = b;
    m->used[r->block] = false;
    if (!b) {
        m->result->ooms++;
        return;
    }
    b->taken = true;
    uint64_t left = b->size - size;
    if (pool % 2 && !m->expandable ? left > SMALL_MAX : left >= ROUNDING) {
        struct block *rest = cut(m, b, size);
        if (rest)
            add_free(m, rest);
    }
    m->live += r->bytes;
    if (m->result->reserved_peak < m->reserved) {
        m->result->reserved_peak = m->reserved;
        m->result->live_at_peak = m->live;
    }
}

static void play_free(struct model *m, const struct record *r)
{
    struct block *b = m->blocks[r->block];
    if (!b)
        return;
    m->blocks[r->block] = NULL;
    m->live -= r->bytes;
    if (!m->used[r->block]) {
        put_free(m, b);
        return;
    }
    m->cost += m->prices.event;
    b->due = m->now + m->lag;
    b->next_pending = NULL;
    *m->pending_end = b;
    m->pending_end = &b->next_pending;
}

/* Part of an expandable segment, mapped there. NULL: its place is taken, or no host memory. */
static struct block *lay_in_addresses(struct model *m, uint32_t pool, const struct record *r)
{
    if (!has_addresses(m, pool, r))
        return NULL;
    struct block *b = m->laid && m->laid->pool == pool ? m->laid : m->pools[pool].first;
    while (b && b->at + b->size <= r->address)
        b = b->after;
    if (!b || b->mapped || b->at > r->address || b->at + b->size < r->address + r->bytes)
        return NULL;
    if (b->at < r->address)
        b = cut(m, b, r->address - b->at);
    if (b && b->size > r->bytes && !cut(m, b, r->bytes))
        return NULL;
    return b;
}

/* A piece of the memory that the card held before the recording. */
static bool lay(struct model *m, const struct record *r)
{
    uint32_t pool = r->stream * 2 + (r->tag == 1);
    bool begins = r->reserved > m->reserved;
    struct block *b = m->expandable ? lay_in_addresses(m, pool, r) : make_block(m, pool, r->address, r->bytes);
    if (!b)
        return false;
    if (!m->expandable && !begins) {
        b->before = m->laid;
        if (m->laid)
            m->laid->after = b;
    }
    b->mapped = b->taken = true;
    b->age = 0; /* the recording does not say which of these came first */
    m->laid = m->blocks[r->block] = b;
    m->live += r->bytes;
    if (begins)
        m->reserved = r->reserved;
    return true;
}

/* Every block is in one list of neighbours, which is freed from its first block. */
static void end(struct model *m, const struct trace *trace, uint32_t pools)
{
    settle(m, UINT64_MAX);
    for (uint32_t i = 0; m->blocks && i <= trace->blocks; i++)
        if (m->blocks[i])
            put_free(m, m->blocks[i]);
    for (uint32_t i = 0; m->pools && i < pools; i++) {
        struct pool *pool = &m->pools[i];
        for (uint32_t j = 0; j < pool->count && !pool->first; j++) /* native: all is free, so each segment is one block */
            free(pool->free[j]);
        for (struct block *b = pool->first, *after; b; b = after) {
            after = b->after;
            free(b);
        }
        free(pool->free);
    }
    free(m->pools);
    free(m->blocks);
    free(m->used);
}

static struct prices read_prices(const char *prices)
{
    return (struct prices){
        .segment = sim_price(prices, "cuMemAlloc"),
        .segment_back = sim_price(prices, "cuMemFree"),
        .addresses = sim_price(prices, "cuMemAddressReserve"),
        .page = sim_price(prices, "cuMemCreate") + sim_price(prices, "cuMemMap") + sim_price(prices, "cuMemSetAccess"),
        .page_back = sim_price(prices, "cuMemUnmap") + sim_price(prices, "cuMemRelease"),
        .event = sim_price(prices, "cuEventRecord"),
        .question = sim_price(prices, "cuEventQuery"),
    };
}

static void play_record(struct model *m, const struct record *r, uint32_t pools)
{
    if (r->op == RECORD_ALLOC)
        play_alloc(m, r, pools);
    else if (r->op == RECORD_FREE)
        play_free(m, r);
    else if (r->op == RECORD_USE)
        m->used[r->block] |= m->blocks[r->block] && m->blocks[r->block]->pool / 2 != r->stream;
    else if (m->recorded || m->trims)
        give_back(m, pools);
}

static void note_moment(const struct model *m, const struct record *r, struct moment *moment)
{
    const struct block *b = r->op == RECORD_ALLOC ? m->blocks[r->block] : NULL;
    *moment = (struct moment){.reserved = m->reserved, .address = b ? b->at : 0};
}

static void play_once(struct model *m, const struct trace *trace, const struct replay_plan *plan, uint32_t pools)
{
    uint64_t before = m->cost;
    for (size_t i = 0; i < trace->count && !m->no_memory; i++) {
        const struct record *r = &trace->records[i];
        m->now++;
        if (i < plan->laid && r->op == RECORD_ALLOC)
            m->cannot_lie = m->cannot_lie || !lay(m, r);
        else
            play_record(m, r, pools);
        if (plan->curve && i < trace->in_file)
            note_moment(m, r, &plan->curve[i]);
    }
    m->result->driver_last_ns = m->cost - before;
}

static void play(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result, bool expandable)
{
    uint32_t pools = trace->streams * 2;
    struct model m = {.capacity = plan->recorded ? UINT64_MAX / 2 : plan->capacity, .address = plan->falls ? ADDRESSES_APART : MIB,
                      .expandable = expandable, .trims = plan->trims, .falls = plan->falls, .recorded = plan->recorded, .ties = plan->ties,
                      .result = result, .lag = replay_lag(plan, trace), .prices = read_prices(plan->prices),
                      .pools = calloc(pools, sizeof(*m.pools)), .blocks = calloc(trace->blocks + 1, sizeof(*m.blocks)),
                      .used = calloc(trace->blocks + 1, sizeof(*m.used))};
    memset(result, 0, sizeof(*result));
    m.pending_end = &m.pending;
    m.no_memory = !m.pools || !m.blocks || !m.used;
    for (uint32_t i = 0; i < plan->repeat; i++) {
        play_once(&m, trace, plan, pools);
        if (i == 0)
            result->driver_first_ns = result->driver_last_ns;
    }
    result->driver_ns = m.cost;
    if (m.cannot_lie) {
        result->failed = 1;
        strcpy(result->message, "pieces of the memory before the recording overlap");
    }
    if (m.no_memory) {
        result->failed = 1;
        strcpy(result->message, "no host memory");
    }
    end(&m, trace, pools);
}

void play_native(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    play(trace, plan, result, false);
}

void play_expandable(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    play(trace, plan, result, true);
}
