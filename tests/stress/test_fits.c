/*
 * test_fits.c: does a request fail only if it has to? Random programs on cards, or under limits, that are hardly larger than what is live.
 *
 * Pages move, and what is free goes back to the driver. So a request that failed must have lacked memory, wherever that is:
 *
 *     bytes of pages under no live byte, in all pools of the device  +  what the driver has left  <  what the request can lack
 *
 * and as much below the limit of its pool. A place lacks no page that a neighbour's bytes lie on: so no more than its size takes in small pages, and
 * one more if it has to begin at some address. docs/design.md, section 6. Beside that the pool stays within its limit, its books are in order
 * after each failure, and in the end everything goes back.
 *
 * What fails is shrunk to few operations that still fail, and printed. CENOTE_TEST_ROUNDS: more seeds. FITS_SEED: the first.
 *
 * Not: private groups, pins, exports, captures, memory that cannot move, and several threads.
 */
#include "tests/api/scene.h"
#include "tests/rounds.h"
#include "tests/stress/portions.h"
#include "tests/stress/refusals.h"
#include "tests/stress/versions.h"

#include "pool/arenas/last_freed.h"
#include "pool/mapping/units.h"

#define BLOCKS     256
#define OPERATIONS 400
#define POOLS      2

enum what { TAKE, TAKE_AT, GIVE, USE, TRIM, GRADE, BEHIND, SYNC, REFUSE_CALL, LIMIT, RETIRE, FOREIGN, STEP };

static const char *const names[] = {"take", "take_at", "give", "use", "trim", "grade", "behind", "sync", "refuse", "limit", "retire", "foreign",
                                    "step"};

struct operation {
    enum what what;
    uint32_t  block, stream, pool;
    size_t    bytes;            /* GRADE: units_grade_pages; BEHIND, STEP: ns; REFUSE_CALL: the enum refusal */
    size_t    alignment;        /* 0: 512 */
    bool      grouped;          /* of the group that may share no pages */
    uint32_t  skip, times;      /* of REFUSE_CALL */
};

struct own {
    char    *at, *was;          /* NULL: none; where it was before it was given back */
    size_t   bytes;
    uint32_t stream, pool;
    bool     grouped;
};

struct program {
    uint64_t         seed, random;
    struct sim_shape shape;
    cenote_options   options;
    int64_t          says;      /* the driver, more than it has */
    uint64_t         grade_pages;
    uint32_t         pools;
    unsigned         flags;     /* of the groups */
    bool             immortal, granted, refuses;
    int              version;   /* of the driver */

    struct scene     scene;
    cenote_pool     *pool[POOLS];
    cenote_group    *group[POOLS];
    struct own       own[BLOCKS];
    struct operation ran[OPERATIONS];
    uint32_t         count;
    char             why[512];  /* "": nothing failed */
};

static struct {
    uint64_t programs, requests, failed, nearly; /* nearly: one small page more, and it would have had to succeed */
} totals;

static uint64_t pick(uint64_t *random, uint64_t below)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

#define ANY(random, ...) ((const uint64_t[]){__VA_ARGS__}[pick(random, sizeof(const uint64_t[]){__VA_ARGS__} / sizeof(uint64_t))])

static void complain(struct program *p, const char *what, const char *more)
{
    if (!*p->why)
        snprintf(p->why, sizeof p->why, "%s: %s", what, more);
}

/* ---------------------------------------------------------------------------------------------------------------------- the oracle */

static uint64_t up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }
static uint64_t small_page(const struct program *p) { return 1ull << p->pool[0]->store.pages.shifts[GRADE_SMALL]; }

static uint64_t free_pages(cenote_pool *pool)
{
    struct pages *s = &pool->store.pages;
    uint64_t stays, done, bytes = s->spare_bytes;
    lock_take(&pool->lock);
    last_freed_settle(pool);
    for (uint32_t number = 1; number < s->regions.used; number++)
        bytes += region_of(s, number) ? pages_free(s, region_of(s, number), &stays, &done) : 0;
    lock_give(&pool->lock);
    return bytes;
}

/* All that can be had for a request, in small pages. */
static uint64_t to_be_had(const struct program *p, cenote_pool *pool)
{
    size_t left, total;
    DONE(cuMemGetInfo(&left, &total));
    for (uint32_t i = 0; i < p->pools; i++)
        left += free_pages(p->pool[i]);
    uint64_t under_blocks = pool->store.pages.reserved - free_pages(pool), limit = pool->limits.bytes ? pool->limits.bytes : UINT64_MAX;
    uint64_t below = limit > under_blocks ? limit - under_blocks : 0;
    return (below < left ? below : left) / small_page(p) * small_page(p);
}

/* Asked before the call, which may give up the region in which its place would be. */
static uint64_t most_lacking(const struct program *p, const struct operation *o)
{
    uint64_t small = small_page(p), large = 1ull << p->pool[0]->store.pages.shifts[GRADE_LARGE];
    if (o->grouped && p->flags & CENOTE_GROUP_WHOLE) {
        const struct region *r = o->what == TAKE_AT ? addresses_find_for_certain(device_address(p->own[o->block].was)) : NULL;
        return up(o->bytes, (r ? !r->unit_shift : up(o->bytes, small) <= 64 * small) ? small : large);
    }
    bool is_slab = o->bytes <= CLASS_BYTES_MAX && !o->alignment;
    return up(is_slab ? slab_bytes(class_of(o->bytes)) : o->bytes, small) + (o->what == TAKE_AT || o->alignment ? small : 0);
}

/* The device is done with everything, and the pools see it: before CUDA 12.5 those alone that have waited themselves. */
static void look_anew(const struct program *p)
{
    DONE(cuCtxSynchronize());
    for (uint32_t i = 0; i < p->pools; i++)
        DONE(cenote_pool_trim(p->pool[i], UINT64_MAX, p->version < 12050 ? CENOTE_TRIM_WAIT : 0)); /* nothing goes */
}

/* Did the request have to fail? Blocks that waited for other streams are back by then, because it has waited for them. */
static void judge_failure(struct program *p, const struct operation *o, uint64_t lacks)
{
    look_anew(p);
    uint64_t had = to_be_had(p, p->pool[o->pool]);
    totals.failed++;
    totals.nearly += had + small_page(p) >= lacks;
    char text[128];
    snprintf(text, sizeof text, "%llu KiB can be had, and it lacks %llu at most", (unsigned long long)had / 1024, (unsigned long long)lacks / 1024);
    if (had >= lacks)
        complain(p, "a request failed", text);
    if (cenote_pool_check(p->pool[o->pool]))
        complain(p, "the books", cenote_message());
}

/* --------------------------------------------------------------------------------------------------------------------- operations */

static int try_take(struct program *p, const struct operation *o, void **at, uint64_t *lacks)
{
    *lacks = most_lacking(p, o);
    cenote_pool *pool = p->pool[o->pool];
    cenote_group *group = o->grouped ? p->group[o->pool] : NULL;
    CUstream stream = p->scene.stream[o->stream];
    size_t alignment = o->alignment ? o->alignment : 512;
    if (o->what == TAKE_AT)
        return alloc_at(pool, group, *at, o->bytes, stream);
    return group ? group_alloc(group, o->bytes, alignment, stream, at) : alloc_aligned(pool, o->bytes, alignment, stream, at);
}

static void take(struct program *p, const struct operation *o)
{
    struct own *own = &p->own[o->block];
    const cenote_pool *pool = p->pool[o->pool];
    uint64_t before = pool->store.pages.reserved, lacks;
    void *at = own->was;
    if (own->at || (o->what == TAKE_AT && !at))
        return;
    totals.requests++;
    refusals.fired = 0;
    int error = try_take(p, o, &at, &lacks);
    if (error && refusals.fired) { /* a call that is refused may have cost the request: the next one is held to the rule */
        refusals_begin(p->says);
        error = try_take(p, o, &at, &lacks);
    }
    if (error == CENOTE_BUSY && !p->refuses) { /* the device was not done with what lay there, and now it is */
        look_anew(p);
        error = try_take(p, o, &at, &lacks);
    }
    if (pool->limits.bytes && pool->store.pages.reserved > before && pool->store.pages.reserved > pool->limits.bytes)
        complain(p, "the pool", "it holds more than its limit");
    if (error == CENOTE_OUT_OF_MEMORY)
        judge_failure(p, o, lacks);
    else if (error && (o->what != TAKE_AT || (error != CENOTE_INVALID && !(error == CENOTE_BUSY && p->refuses)))) /* a block, or a broken slot */
        complain(p, "an error", cenote_message());
    if (error)
        return;
    *own = (struct own){.at = at, .bytes = o->bytes, .stream = o->stream, .pool = o->pool, .grouped = o->grouped};
    DONE(sim_launch_touch(p->scene.stream[o->stream], device_address(at), o->bytes));
}

static void give(struct program *p, struct own *own)
{
    if (!own->at)
        return;
    DONE(sim_launch_touch(p->scene.stream[own->stream], device_address(own->at), own->bytes));
    DONE(cenote_free(own->at));
    own->was = own->at;
    own->at = NULL;
}

static void use(struct program *p, const struct operation *o)
{
    struct own *own = &p->own[o->block];
    if (!own->at || own->stream == o->stream)
        return;
    order(p->scene.stream[own->stream], p->scene.stream[o->stream]);
    DONE(sim_launch_touch(p->scene.stream[o->stream], device_address(own->at), own->bytes));
    DONE(cenote_use(own->at, p->scene.stream[o->stream]));
}

/* The stream ends, and another one comes in its place. */
static void retire(struct program *p, uint32_t stream)
{
    for (int i = 0; i < BLOCKS; i++) {
        if (p->own[i].stream != stream)
            continue;
        give(p, &p->own[i]);
        p->own[i].was = NULL;
    }
    for (uint32_t i = 0; i < p->pools; i++)
        DONE(cenote_stream_retire(p->pool[i], p->scene.stream[stream]));
    DONE(cuStreamDestroy(p->scene.stream[stream]));
    DONE(cuStreamCreate(&p->scene.stream[stream], CU_STREAM_NON_BLOCKING));
}

static void refuse(const struct operation *o)
{
    refusals.of[o->bytes].skip = o->skip;
    refusals.of[o->bytes].times = o->times;
    refusals.of[o->bytes].error = o->times % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    if (o->bytes == REFUSE_ACCESS) /* nor can what was mapped before be undone */
        refusals.of[REFUSE_UNMAP] = refusals.of[REFUSE_ACCESS], refusals.of[REFUSE_UNMAP].skip = 0;
}

static void run(struct program *p, const struct operation *o)
{
    CUstream stream = p->scene.stream[o->stream];
    cenote_pool *pool = p->pool[o->pool];
    switch (o->what) {
    case TAKE:
    case TAKE_AT: take(p, o); break;
    case GIVE:    give(p, &p->own[o->block]); break;
    case USE:     use(p, o); break;
    case TRIM:    DONE(cenote_pool_trim(pool, o->bytes, 0)); break;
    case GRADE:   units_grade_pages = (uint32_t)o->bytes; break;
    case BEHIND:  DONE(sim_launch_wait(stream, o->bytes)); break;
    case SYNC:    DONE(cuStreamSynchronize(stream)); break;
    case REFUSE_CALL: refuse(o); break;
    case LIMIT:   DONE(cenote_pool_set_limit(pool, o->bytes)); break;
    case RETIRE:  retire(p, o->stream); break;
    case FOREIGN: sim_set_foreign(0, o->bytes); break;
    case STEP:
        DONE(cenote_pool_step(pool));
        sim_advance(o->bytes);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------------------------ programs */

static void design(struct program *p)
{
    uint64_t *random = &p->random;
    p->shape = scene_card(ANY(random, 64, 96, 128, 192, 256, 512, 1024, 2048) * MIB + ANY(random, 0, 0, 0, 2, 6, 10) * MIB);
    p->shape.lag = ANY(random, 0, 0, MSEC / 5, 2 * MSEC, 20 * MSEC);
    p->shape.granularity = ANY(random, 2 * MIB, 2 * MIB, 2 * MIB, 64 * KIB);
    p->version = pick(random, 8) ? VERSION_NEWEST : p->seed % 2 ? 12000 : 11080; /* no fences; nor ids of streams */
    p->shape.devices = 2;
    if (pick(random, 6) == 0) { /* more mappings than the blocks need, if each has a page of its own at both ends */
        p->shape.quirks = SIM_QUIRK(MAPPING_CEILING) | SIM_QUIRK(HANDLE_CEILING);
        p->shape.mapping_ceiling = p->shape.capacity / p->shape.granularity + ANY(random, 10, 100, 400);
        p->shape.handle_ceiling = ANY(random, 2, 5, 50);
    }
    p->immortal = pick(random, 8) == 0;
    p->granted = pick(random, 8) == 0 && !p->immortal;
    p->refuses = pick(random, 4) == 0;
    p->pools = pick(random, 4) ? 1 : POOLS;
    p->flags = pick(random, 3) ? 0 : CENOTE_GROUP_WHOLE;
    p->says = pick(random, 4) ? 0 : (int64_t)ANY(random, 2, 16, 64, 1024) * (int64_t)MIB * (pick(random, 2) ? 1 : -1);
    p->grade_pages = ANY(random, 0, 1, 2, 3, 6, 1 << 20);
    p->options = scene_options();
    p->options.page_mib = (uint32_t)ANY(random, 2, 8, 16, 32);
    p->options.order = (uint32_t)pick(random, 3);
    p->options.harvest_budget = (double)pick(random, 3) / 2 - 0.5;
    p->options.aliases = pick(random, 4) ? CENOTE_ALIASES_ON : CENOTE_ALIASES_OFF;
    p->options.mappings = ANY(random, 400000, 400000, 0, 60);
    p->options.limit = pick(random, 4) ? 0 : (double)(p->shape.capacity / 2 + ANY(random, 0, 0, 1, 512 * KIB));
    p->options.address_ratio = (uint32_t)ANY(random, 64, 64, 4, 1);
    p->options.trim_every = (uint32_t)ANY(random, 0, 0, 1, 3);
    p->options.decay_ms = (uint32_t)ANY(random, 0, 0, 0, 1, 20);
    p->options.trim_above = pick(random, 6) ? p->options.trim_above : 0.5;
    p->options.announced = !p->immortal; /* a stream that may have ended keeps its memory otherwise */
}

static void open_program(struct program *p)
{
    memset(p->own, 0, sizeof p->own);
    *p->why = 0;
    units_grade_pages = (uint32_t)p->grade_pages;
    portions_begin(p->seed);
    version_set(p->version);
    scene_open_with(&p->scene, &p->shape, &p->options);
    refusals_begin(p->says);
    for (uint32_t i = 0; i < p->pools; i++) {
        void *first = NULL; /* before a call is refused the pool proves what pages can be */
        p->pool[i] = p->scene.pool;
        if (i)
            DONE(cenote_pool_create(0, &p->options, &p->pool[i]));
        DONE(cenote_group_create(p->pool[i], "group", p->flags, NULL, &p->group[i]));
        for (int s = 0; s < SCENE_STREAMS && p->immortal; s++)
            DONE(cenote_stream_set_immortal(p->pool[i], p->scene.stream[s]));
        if (p->granted)
            DONE(cenote_pool_grant(p->pool[i], 1));
        DONE(cenote_alloc(p->pool[i], MIB, p->scene.stream[A], &first));
        DONE(cenote_free(first));
        DONE(cenote_pool_trim(p->pool[i], 0, CENOTE_TRIM_WAIT));
    }
    totals.programs++;
}

static void close_program(struct program *p)
{
    refusals_begin(0);
    sim_set_foreign(0, 0);
    for (int i = 0; i < BLOCKS; i++)
        give(p, &p->own[i]);
    for (uint32_t i = 0; i < p->pools; i++) {
        DONE(cenote_group_destroy(p->group[i]));
        DONE(cenote_pool_trim(p->pool[i], 0, CENOTE_TRIM_WAIT));
        if (scene_stats(p->pool[i]).reserved.current)
            complain(p, "the pool", "something stays in it");
        if (i)
            DONE(cenote_pool_destroy(p->pool[i]));
    }
    units_grade_pages = GRADE_PAGES;
    scene_close(&p->scene);
    portions_end();
    version_set(VERSION_NEWEST);
}

struct mood {
    uint32_t sizes, streams, left;  /* which sizes are asked for, by how many streams, and for how long */
};

static uint32_t pick_own(struct program *p, bool live)
{
    uint32_t from = (uint32_t)pick(&p->random, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        if ((p->own[(from + i) % BLOCKS].at != NULL) == live)
            return (from + i) % BLOCKS;
    return from;
}

static size_t pick_bytes(uint64_t *random, uint32_t sizes)
{
    switch (sizes) {
    case 0:  return 1 + pick(random, 600 * KIB);
    case 1:  return MIB + pick(random, 3 * MIB);
    case 2:  return 5 * MIB + pick(random, 55 * MIB);
    case 3:  return ANY(random, 2, 4, 8, 16, 32) * MIB + pick(random, 5) * 512 - 1024;
    case 4:  return (1 + pick(random, 24)) * MIB;
    case 5:  return 1 + pick(random, 9 * KIB);
    default: return pick_bytes(random, (uint32_t)pick(random, 6));
    }
}

static struct operation next_take(struct program *p, const struct mood *m, struct operation o)
{
    uint64_t *random = &p->random, most = p->shape.capacity / 3;
    o.what = pick(random, 12) ? TAKE : TAKE_AT;
    o.block = pick_own(p, false);
    o.grouped = p->flags && pick(random, 3) == 0;
    o.alignment = pick(random, 12) ? 0 : ANY(random, 4 * KIB, MIB, 2 * MIB);
    o.bytes = pick_bytes(random, m->sizes);
    o.bytes = o.bytes < most ? o.bytes : most;
    if (pick(random, 3) == 0) { /* all that is left, or nearly */
        uint64_t left = to_be_had(p, p->pool[o.pool]), cut = pick(random, 3) * small_page(p) + ANY(random, 0, 0, 512, 1);
        o.bytes = left > cut ? left - cut : 1 + left;
    }
    for (int tries = 0; tries < 20 && o.what == TAKE_AT && !p->own[o.block].was; tries++)
        o.block = pick_own(p, false);
    const struct own *own = &p->own[o.block];
    if (o.what == TAKE_AT && own->was)
        return (struct operation){TAKE_AT, .block = o.block, .stream = own->stream, .pool = own->pool, .bytes = own->bytes, .grouped = own->grouped};
    o.what = TAKE;
    return o;
}

/* Not a request. False: it is to be one. */
static bool next_other(struct program *p, struct operation *o)
{
    uint64_t *random = &p->random;
    switch (pick(random, 48)) {
    case 0:
        *o = (struct operation){GRADE, .bytes = ANY(random, 0, 1, 2, 3, 6, 1 << 20)};
        return true;
    case 1:
        *o = (struct operation){TRIM, .pool = o->pool, .bytes = ANY(random, 0, 0, 64 * MIB, SIZE_MAX)};
        return true;
    case 2:
    case 3:
        *o = (struct operation){BEHIND, .stream = o->stream, .bytes = ANY(random, MSEC, 10 * MSEC, 100 * MSEC)};
        return true;
    case 4:
        o->what = SYNC;
        return true;
    case 5:
        o->what = USE;
        return true;
    case 6:
        *o = (struct operation){REFUSE_CALL, .bytes = pick(random, REFUSALS), .skip = (uint32_t)pick(random, 4)};
        o->times = 1 + (uint32_t)pick(random, 4);
        o->times = o->bytes == REFUSE_RELEASE ? 1 : o->times; /* a handle that cannot be released twice in a row is lost */
        return p->refuses;
    case 7:
        *o = (struct operation){LIMIT, .pool = o->pool, .bytes = p->shape.capacity / ANY(random, 2, 2, 3, 4) + ANY(random, 0, 4 * KIB)};
        return p->options.limit != 0;
    case 8:
        *o = (struct operation){STEP, .pool = o->pool, .bytes = ANY(random, 0, MSEC, 100 * MSEC)};
        return true;
    case 9:
        *o = (struct operation){FOREIGN, .bytes = ANY(random, 0, 0, 2, 20, p->shape.capacity / MIB / 4) * MIB};
        return true;
    case 10:
        o->what = RETIRE;
        return pick(random, 4) == 0 && !p->immortal;
    default:
        return false;
    }
}

/* The fuller the pool is, the more often something is given back. */
static struct operation next(struct program *p, struct mood *m)
{
    uint64_t *random = &p->random;
    if (!m->left--)
        *m = (struct mood){(uint32_t)pick(random, 8), 1 + (uint32_t)pick(random, SCENE_STREAMS), 20 + (uint32_t)pick(random, 60)};
    struct operation o = {.stream = (uint32_t)pick(random, m->streams), .pool = (uint32_t)pick(random, p->pools), .block = pick_own(p, true)};
    struct operation other = o;
    if (next_other(p, &other))
        return other;
    uint64_t live = 0, most = p->options.limit ? (uint64_t)p->options.limit * p->pools : p->shape.capacity;
    for (uint32_t i = 0; i < p->pools; i++)
        live += p->pool[i]->account.stats.allocated.current;
    o.what = GIVE;
    return pick(random, 100) < (live > most / 100 * 90 ? 50 : live > most / 2 ? 25 : 10) ? o : next_take(p, m, o);
}

static void search(struct program *p)
{
    struct mood mood = {.streams = 1 + (uint32_t)pick(&p->random, SCENE_STREAMS)};
    open_program(p);
    for (p->count = 0; p->count < OPERATIONS && !*p->why;) {
        struct operation o = next(p, &mood);
        p->ran[p->count++] = o;
        run(p, &o);
    }
    close_program(p);
}

/* ------------------------------------------------------------------------------------------------------------------------- shrinking */

static bool fails_again(struct program *p)
{
    open_program(p);
    for (uint32_t i = 0; i < p->count && !*p->why; i++)
        run(p, &p->ran[i]);
    close_program(p);
    return *p->why;
}

/* Leaves out what it can: halves, quarters, ... single operations. */
static void shrink(struct program *p)
{
    static struct operation kept[OPERATIONS];
    for (uint32_t part = p->count / 2; part; part /= 2)
        for (uint32_t from = 0; from < p->count;) {
            uint32_t before = p->count, gone = from + part < before ? part : before - from;
            memcpy(kept, p->ran, sizeof kept);
            memmove(p->ran + from, p->ran + from + gone, (before - from - gone) * sizeof *p->ran);
            p->count -= gone;
            if (fails_again(p))
                continue;
            memcpy(p->ran, kept, sizeof kept);
            p->count = before;
            from += part;
        }
    fails_again(p);
}

static void tell(const struct program *p)
{
    const cenote_options *o = &p->options;
    fprintf(stderr, "\nseed %llu, %s\n", (unsigned long long)p->seed, p->why);
    fprintf(stderr, "  card of %llu MiB, granularity %llu KiB, lag %llu, driver %d, says %lld MiB more, ceilings of mappings %llu and %llu\n",
            (unsigned long long)(p->shape.capacity / MIB), (unsigned long long)p->shape.granularity / 1024, (unsigned long long)p->shape.lag,
            p->version, (long long)(p->says / (int64_t)MIB), (unsigned long long)p->shape.mapping_ceiling,
            (unsigned long long)p->shape.handle_ceiling);
    fprintf(stderr, "  %u pools, group flags %u, immortal %d, granted %d, refuses %d, units_grade_pages %llu\n", p->pools, p->flags, p->immortal,
            p->granted, p->refuses, (unsigned long long)p->grade_pages);
    fprintf(stderr, "  page_mib:%u,order:%u,harvest_budget:%g,aliases:%s,mappings:%llu,limit:%.0f,", o->page_mib, o->order, o->harvest_budget,
            o->aliases == CENOTE_ALIASES_ON ? "on" : "off", (unsigned long long)o->mappings, (double)o->limit);
    fprintf(stderr, "address_ratio:%u,trim_every:%u,decay_ms:%u,trim_above:%g\n", o->address_ratio, o->trim_every, o->decay_ms, o->trim_above);
    for (uint32_t i = 0; i < p->count; i++) {
        const struct operation *r = &p->ran[i];
        fprintf(stderr, "  %-8s #%-3u stream %u pool %u  %zu (%.3f MiB)  alignment %zu grouped %d skip %u times %u\n", names[r->what], r->block,
                r->stream, r->pool, r->bytes, (double)r->bytes / MIB, r->alignment, r->grouped, r->skip, r->times);
    }
}

/* True: it holds to the rule. */
static bool holds(uint64_t seed)
{
    static struct program p;
    p.seed = p.random = seed;
    design(&p);
    search(&p);
    if (!*p.why)
        return true;
    shrink(&p);
    tell(&p);
    return false;
}

/* 5198: the pool gave pages back during the climb, held less then, and so did not ask the driver before the last attempt. */
CASE(programs_that_failed_once)
{
    static const uint64_t seeds[] = {5198};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        EXPECT(holds(seeds[i]));
}

CASE(a_request_fails_only_if_memory_is_lacking)
{
    const char *text = getenv("FITS_SEED");
    int failures = 0;
    for (uint64_t seed = text ? strtoull(text, NULL, 0) : 1, last = seed + (uint64_t)rounds(200); seed < last && failures < 5; seed++)
        failures += !holds(seed);
    EXPECT_EQ(failures, 0);
    EXPECT(totals.nearly * 20 > totals.requests); /* else the programs say little */
    fprintf(stderr, "(%llu programs, %llu requests, %llu failed, %llu of them by less than a page) ", (unsigned long long)totals.programs,
            (unsigned long long)totals.requests, (unsigned long long)totals.failed, (unsigned long long)totals.nearly);
}

SCENES_MAIN("stress: fits")
