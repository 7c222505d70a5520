/*
 * test_worlds.c: random programs in a world of two devices: each has its primary context, one of the program's own, and streams of a green one. Each
 * context has a pool, which ends and begins again while other threads are at it. The seed says which providers, limits and orders there are, how old
 * the driver is, what it promises and refuses, and of which devices captures are announced. Threads come and go, use blocks of each other on their
 * own streams and on those of the other device, capture, and replay; memory sleeps and wakes (naps.h). Between their lives a primary context is
 * reset, and while they live the driver refuses a call now and then. Every block has contents, which the simulated card judges, and in the end the
 * cards have everything back.
 *
 * A seed makes a program; with threads, as far as threads do. WORLD_SEED: the first. CENOTE_TEST_ROUNDS: more seeds.
 *
 * Not: one pool with everything (test_model.c, test_soak.c), and refusals while a pool is destroyed (test_soak.c).
 */
#include "tests/stress/naps.h"

/* ----------------------------------------------------------------------------------------------------------------------------- blocks */

static size_t pick_bytes(uint64_t *random)
{
    uint64_t kind = pick(random, 10);
    return 1 + (size_t)pick(random, kind < 5 ? 40 * KIB : kind < 9 ? 3 * MIB : 20 * MIB);
}

/* Now and then from a group, which ends before its block. */
static int ask(struct worker *w, cenote_pool *pool, size_t bytes, CUstream stream, void **at)
{
    static const unsigned flags[] = {0, CENOTE_GROUP_LEND, CENOTE_GROUP_WHOLE, CENOTE_GROUP_PLAIN, CENOTE_GROUP_PRIVATE};
    cenote_group *group;
    if (pick(&w->random, 8))
        return cenote_alloc(pool, bytes, stream, at);
    int error = cenote_group_create(pool, "group", flags[pick(&w->random, 5)], NULL, &group);
    if (error)
        return error;
    error = group_alloc(group, bytes, (size_t)512 << pick(&w->random, 12), stream, at);
    MUST(cenote_group_destroy(group) == CENOTE_OK);
    return error;
}

static void take(struct worker *w, struct block *b, int place, int kind)
{
    void *at = NULL;
    size_t bytes = pick_bytes(&w->random);
    CUstream stream = stream_of(w, place, kind);
    enter(place);
    cenote_pool *pool = enter_pool(place);
    if (!pool)
        return;
    if (MAY(ask(w, pool, bytes, stream, &at))) {
        *b = (struct block){{at, bytes, pick(&w->random, UINT64_MAX) | 1, stream}, place, kind};
        world.served++;
        launch(&b->held, sim_launch_fill, stream);
    }
    leave_pool(place);
}

static void give(struct worker *w, struct block *b)
{
    enter(b->place);
    launch(&b->held, sim_launch_expect, b->held.stream);
    MUST((pick(&w->random, 2) ? cenote_free(b->held.at) : cenote_free_sized(b->held.at, b->held.bytes)) == CENOTE_OK);
    b->held.at = NULL;
}

/* A stream of the same context reads it, late. */
static void use_near(struct worker *w, struct block *b)
{
    int kind = (int)pick(&w->random, KINDS);
    CUstream reader = stream_of(w, b->place, kind);
    enter(b->place);
    if (cenote_use(b->held.at, reader) != CENOTE_OK) {
        must(world.refuses, "a use in the same context", __LINE__);
        return;
    }
    follow(b->held.stream, reader, b->place, b->place);
    MUST(sim_launch_wait(reader, pick(&w->random, MSEC)) == CUDA_SUCCESS);
    launch(&b->held, sim_launch_expect, reader);
}

/* Its last use is on another stream, which the free names. */
static void give_on(struct worker *w, struct block *b)
{
    CUstream reader = stream_of(w, b->place, (int)pick(&w->random, KINDS));
    follow(b->held.stream, reader, b->place, b->place);
    MUST(sim_launch_wait(reader, pick(&w->random, MSEC)) == CUDA_SUCCESS);
    launch(&b->held, sim_launch_expect, reader);
    int error = cenote_free_on(b->held.at, reader);
    if (error) { /* the block is live still */
        follow(reader, b->held.stream, b->place, b->place);
        MUST(world.refuses && cenote_free(b->held.at) == CENOTE_OK);
    }
    b->held.at = NULL;
}

/* A stream of the other device reads it: told by a use, or the block's own stream comes after it. */
static void use_far(struct worker *w, struct block *b)
{
    int place = (b->place + 2) % PLACES, kind = (int)pick(&w->random, PART);
    CUstream reader = stream_of(w, place, kind);
    bool is_told = pick(&w->random, 2);
    if (!world.peers || !world.place[place].is_primary)
        return;
    cenote_pool *pool = enter_pool(b->place);
    if (!pool) /* another thread tries to end it, and will be told of this block */
        return;
    int error = cenote_pool_grant(pool, world.place[place].device);
    leave_pool(b->place);
    MUST(!error || world.refuses || (error == CENOTE_NOT_SUPPORTED && world.place[b->place].options.provider == CENOTE_GUARD));
    if (error)
        return;
    enter(b->place);
    if (is_told) {
        is_told = (pick(&w->random, 2) ? cenote_use(b->held.at, reader) :
                   cenote_use_on_device(b->held.at, world.place[place].device, reader)) == CENOTE_OK;
        MUST(is_told || world.refuses);
    }
    follow(b->held.stream, reader, b->place, place);
    MUST(sim_launch_wait(reader, pick(&w->random, MSEC)) == CUDA_SUCCESS);
    launch(&b->held, sim_launch_expect, reader);
    if (!is_told)
        follow(reader, b->held.stream, place, b->place);
}

/* Streams of the device's other context are none of the pool's. */
static void use_wrongly(struct worker *w, struct block *b)
{
    int place = b->place ^ 1;
    enter(b->place);
    int error = cenote_use(b->held.at, stream_of(w, place, (int)pick(&w->random, PART)));
    MUST(error == CENOTE_INVALID || (error && world.refuses));
}

static void exchange(struct worker *w, struct block *b)
{
    if (b->held.at && b->kind != SHARED)
        return;
    struct block *on = &world.shelf[pick(&w->random, 16)], other;
    pthread_mutex_lock(&world.shelf_lock);
    other = *on;
    *on = *b;
    *b = other;
    pthread_mutex_unlock(&world.shelf_lock);
}

/* ---------------------------------------------------------------------------------------------------------------- streams, captures, pools */

static void retire(int place, CUstream stream)
{
    for (int i = 0; i < PLACES; i++) {
        cenote_pool *pool = world.place[i].device != world.place[place].device || i == place ? enter_pool(i) : NULL;
        if (!pool)
            continue;
        int error, tries = 0;
        while ((error = cenote_stream_retire(pool, stream)) && error != CENOTE_INVALID && world.refuses && ++tries < 8)
            ;
        MUST(!error || error == CENOTE_INVALID);
        leave_pool(i);
    }
}

static void renew(struct worker *w, int place)
{
    CUstream *stream = &world.place[place].stream[w->number][BRIEF];
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].held.at && w->block[i].place == place && w->block[i].kind == BRIEF)
            give(w, &w->block[i]);
    enter(place);
    if (world.must_retire || pick(&w->random, 2))
        retire(place, *stream);
    MUST(cuStreamDestroy(*stream) == CUDA_SUCCESS);
    MUST(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

/* What a capture takes from its group, or without one from the pool and then for as long as the graph is there. */
static void capture_work(struct worker *w, cenote_pool *pool, int place, CUstream stream, struct block *kept, int count)
{
    for (int i = 0; i < count; i++) {
        void *at = NULL;
        size_t bytes = pick_bytes(&w->random);
        kept[i].held.at = NULL;
        if (!MAY(cenote_alloc(pool, bytes, stream, &at)))
            continue;
        kept[i] = (struct block){{at, bytes, pick(&w->random, UINT64_MAX) | 1, stream}, place, CAPTURED};
        launch(&kept[i].held, sim_launch_fill, stream);
        MUST(sim_launch_wait(stream, pick(&w->random, MSEC / 4)) == CUDA_SUCCESS);
        launch(&kept[i].held, sim_launch_expect, stream);
    }
}

/* One graph from its capture to its end. In between this thread takes and gives what the graph knows nothing of. */
static void capture(struct worker *w, int place)
{
    struct place *p = &world.place[place];
    struct block kept[3];
    cenote_group *group = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUstream stream = p->stream[w->number][CAPTURED];
    enter(place);
    cenote_pool *pool = enter_pool(place);
    if (!pool)
        return;
    if (p->announced &&
        (!MAY(cenote_group_create(pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group)) || !MAY(cenote_capture_begin(pool, group, stream)))) {
        if (group)
            MUST(cenote_group_destroy(group) == CENOTE_OK);
        leave_pool(place);
        return;
    }
    MUST(cuStreamBeginCapture(stream, world.threads == 1 && pick(&w->random, 2) ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED) ==
         CUDA_SUCCESS);
    cenote_pool *beside = world.threads == 1 && !pick(&w->random, 4) ? begin_beside(w, p) : NULL;
    capture_work(w, pool, place, stream, kept, 3);
    for (int i = 0; i < BLOCKS && pick(&w->random, 2); i++) {
        struct block *b = &w->block[pick(&w->random, BLOCKS)];
        if (b->held.at && b->kind != CAPTURED)
            give(w, b);
        else if (!b->held.at)
            take(w, b, (int)pick(&w->random, PLACES), SHARED);
    }
    enter(place);
    for (int i = 0; i < 3 && p->announced; i++)
        MUST(cenote_free(kept[i].held.at) == CENOTE_OK);
    MUST(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    if (p->announced)
        MUST(cenote_capture_end(NULL, group, stream) == CENOTE_OK || (world.refuses && cenote_capture_end(NULL, group, stream) == CENOTE_OK));
    MUST(!beside || cenote_pool_destroy(beside) == CENOTE_OK);
    if (MUST(graph != NULL)) {
        world.captured++;
        MUST(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
        for (uint64_t i = pick(&w->random, 3); i > 0 && (!group || pick(&w->random, 2) || nap_of_group(w, pool, group, place)); i--)
            MUST(cuGraphLaunch(exec, stream) == CUDA_SUCCESS); /* never again if it sleeps on */
        MUST(cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    }
    for (int i = 0; i < 3 && !p->announced; i++)
        MUST(cenote_free(kept[i].held.at) == CENOTE_OK);
    if (group)
        MUST(cenote_group_destroy(group) == CENOTE_OK);
    leave_pool(place);
}

/* All contexts are waited for, and all pools told so: uses by streams that no call has named since are over, too. */
static void sync_all(void)
{
    for (int i = 0; i < PLACES; i++) {
        uint64_t sync[PLACES];
        enter(i);
        for (int k = 0; k < PLACES; k++)
            if (world.place[k].pool)
                MUST(cenote_pool_sync_begin(world.place[k].pool, &sync[k]) == CENOTE_OK);
        MUST(cuCtxSynchronize() == CUDA_SUCCESS);
        for (int k = 0; k < PLACES; k++)
            if (world.place[k].pool && (k == i || (world.place[i].is_primary && world.place[i].device != world.place[k].device)))
                MUST(cenote_pool_sync_end(world.place[k].pool, sync[k]) == CENOTE_OK || world.refuses);
    }
}

static void give_all_of(struct worker *w, int place)
{
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].held.at && w->block[i].place == place)
            give(w, &w->block[i]);
    pthread_mutex_lock(&world.shelf_lock);
    for (int i = 0; i < 16; i++)
        if (world.shelf[i].held.at && world.shelf[i].place == place)
            give(w, &world.shelf[i]);
    pthread_mutex_unlock(&world.shelf_lock);
}

static void begin_pool(struct place *p)
{
    cenote_pool *pool = NULL;
    int error = p->is_primary ? cenote_pool_create(p->device, &p->options, &pool) : cenote_pool_create_in(p->context, &p->options, &pool);
    /* BUSY: a capture is open, and this would be the first pool that does not hear of captures */
    if (error != CENOTE_BUSY && MUST(!error || world.refuses) && !error)
        atomic_store(&p->pool, pool);
}

/* A pool ends under threads that are at it, and a next one begins. BUSY: they have blocks, or are on their way. */
static void end_and_begin(struct worker *w, int place)
{
    struct place *p = &world.place[place];
    enter(place);
    atomic_store(&p->is_ending, true);
    give_all_of(w, place);
    pthread_mutex_lock(&world.pools_lock);
    cenote_pool *pool = atomic_load(&p->pool);
    if (!world.captures)
        sync_all();
    enter(place);
    if (pool) {
        atomic_store(&p->pool, NULL);
        uint64_t every = atomic_exchange(&refusing.every, 0);
        int error = cenote_pool_destroy(pool);
        atomic_store(&refusing.every, every);
        MUST(!error || error == CENOTE_BUSY);
        if (error)
            atomic_store(&p->pool, pool);
        world.ended += !error;
        atomic_store(&p->is_ending, error);
        while (!error && atomic_load(&p->callers))
            sched_yield();
    }
    if (!atomic_load(&p->pool) && pick(&w->random, 4))
        begin_pool(p);
    pthread_mutex_unlock(&world.pools_lock);
}

static void look(struct worker *w, int place)
{
    cenote_stats stats;
    cenote_row rows[16];
    size_t count;
    enter(place);
    cenote_pool *pool = enter_pool(place);
    if (!pool)
        return;
    switch (pick(&w->random, 8)) {
    case 0: MAY(cenote_pool_stats(pool, &stats)); break;
    case 1: MAY(cenote_pool_rows(pool, CENOTE_BY_ARENA, rows, 16, &count)); break;
    case 2: MAY(cenote_pool_check(pool)); break;
    case 3: MAY(cenote_pool_step(pool)); break;
    case 4: MAY(cenote_pool_set_limit(pool, pick(&w->random, 2) ? 0 : (40 + pick(&w->random, 80)) * MIB)); break;
    case 5: MAY(cenote_pool_trim(pool, pick(&w->random, 64) * MIB, pick(&w->random, 3) ? 0 : CENOTE_TRIM_WAIT)); break;
    case 6: MAY(cenote_pool_trim(pool, 0, CENOTE_TRIM_PERIODIC)); break;
    default: MUST(cenote_pool_snapshot(pool, "/dev/null") == CENOTE_OK || world.refuses || !atomic_load(&world.place[place].pool)); break;
    }
    leave_pool(place);
}

static void operate(struct worker *w)
{
    for (int place = 0; place < PLACES; place++)
        if (atomic_load(&world.place[place].is_ending))
            give_all_of(w, place);
    struct block *b = &w->block[pick(&w->random, BLOCKS)];
    int place = (int)pick(&w->random, PLACES);
    uint64_t kind = pick(&w->random, 100);
    if (kind < 8)
        exchange(w, b);
    else if (kind < 58)
        b->held.at ? give(w, b) : take(w, b, place, (int)pick(&w->random, KINDS));
    else if (kind < 78 && b->held.at)
        kind < 66 ? use_near(w, b) : kind < 74 ? use_far(w, b) : kind < 76 ? use_wrongly(w, b) : give_on(w, b);
    else if (kind >= 78 && kind < 82)
        renew(w, place);
    else if (kind >= 82 && kind < 85 && world.captures)
        capture(w, place);
    else if (kind >= 85 && kind < 88)
        end_and_begin(w, place);
    else if (kind >= 88 && kind < 91)
        nap(w, place);
    else if (kind >= 91)
        look(w, place);
}

/* ------------------------------------------------------------------------------------------------------------------------ a world's life */

/* Blocks of its own default streams go with the thread. */
static void *live(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < world.steps && !atomic_load(&world.failures); i++)
        operate(w);
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].held.at && w->block[i].kind == OF_THREAD)
            give(w, &w->block[i]);
    for (int place = 0; place < PLACES && !atomic_load(&world.failures); place++) {
        enter(place);
        cenote_pool *pool = enter_pool(place);
        if (!pool)
            continue;
        MAY(cenote_stream_retire(pool, CU_STREAM_PER_THREAD));
        leave_pool(place);
    }
    MUST(cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    return NULL;
}

static void open_streams(int place)
{
    struct place *p = &world.place[place];
    DONE(cuCtxSetCurrent(p->context));
    for (int t = 0; t < THREADS; t++)
        for (int kind = SHARED; kind <= PART; kind++) {
            bool in_part = kind == PART && p->is_primary && world.version >= 12050;
            DONE(in_part ? cuGreenCtxStreamCreate(&p->stream[t][kind], world.green[p->device], CU_STREAM_NON_BLOCKING, 0) :
                           cuStreamCreate(&p->stream[t][kind], CU_STREAM_NON_BLOCKING));
        }
}

static void open_part(int device)
{
    CUdevResource whole, group;
    CUdevResourceDesc described;
    unsigned count = 1;
    DONE(cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    DONE(cuDevSmResourceSplitByCount(&group, &count, &whole, NULL, 0, 16));
    DONE(cuDevResourceGenerateDesc(&described, &group, 1));
    DONE(cuGreenCtxCreate(&world.green[device], described, device, CU_GREEN_CTX_DEFAULT_STREAM));
}

static void open_primary(struct place *p)
{
    DONE(cuDevicePrimaryCtxRetain(&p->context, p->device));
    DONE(cuCtxSetCurrent(p->context));
    open_part(p->device);
}

static void give_all(int place)
{
    for (int t = 0; t < THREADS; t++)
        give_all_of(&world.worker[t], place);
}

static void close_streams(int place)
{
    DONE(cuCtxSetCurrent(world.place[place].context));
    for (int t = 0; t < THREADS; t++)
        for (int kind = SHARED; kind <= PART; kind++) {
            retire(place, world.place[place].stream[t][kind]);
            DONE(cuStreamDestroy(world.place[place].stream[t][kind]));
        }
}

static void end_pool(int place)
{
    DONE(cuCtxSetCurrent(world.place[place].context));
    if (world.place[place].pool) {
        DONE(cenote_pool_check(world.place[place].pool));
        MUST(cenote_pool_destroy(world.place[place].pool) == CENOTE_OK);
    }
    world.place[place].pool = NULL;
}

/* The primary context of a device goes with all that is in it; what other pools have there is over. */
static void reset(int place)
{
    struct place *p = &world.place[place], *beside = p + 1;
    bool goes_along = beside->options.provider == CENOTE_ASYNC; /* memory of the driver's pools is of the device, not of a context */
    give_all(place);
    if (goes_along)
        give_all(place + 1);
    sync_all();
    close_streams(place);
    end_pool(place);
    if (goes_along)
        end_pool(place + 1);
    DONE(cuGreenCtxDestroy(world.green[p->device]));
    DONE(cuCtxSetCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(p->device));
    DONE(cuDevicePrimaryCtxReset(p->device));
    open_primary(p);
    open_streams(place);
    DONE(cuCtxSetCurrent(p->context));
    begin_pool(p);
    if (goes_along)
        begin_pool(beside);
}

static void design(uint64_t *random)
{
    static const uint32_t grades[] = {0, 1, 3, 128};
    static const uint32_t providers[] = {CENOTE_VMM, CENOTE_VMM, CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN, CENOTE_GUARD};
    static const int versions[] = {VERSION_NEWEST, VERSION_NEWEST, VERSION_NEWEST, 12040, 11080};
    static const uint64_t lags[] = {0, MSEC / 5, 2 * MSEC, 20 * MSEC};
    static const uint64_t whims[] = {0, 0, SIM_QUIRK(WSL_RDMA), SIM_QUIRK(FABRIC_INVALID), SIM_QUIRK(ATTRIBUTE_LIES), SIM_QUIRK(FABRIC)};
    struct sim_shape shape = scene_card((120 + 20 * pick(random, 10)) * MIB);
    shape.devices = DEVICES;
    shape.lag = lags[pick(random, 4)];
    shape.quirks = whims[pick(random, 6)];
    world.version = versions[pick(random, 5)];
    version_set(world.version);
    world.captures = pick(random, 2);
    world.peers = pick(random, 2);
    units_grade_pages = grades[pick(random, 4)];
    portions_begin(*random);
    sim_reset(&shape);
    DONE(cuInit(0));
    bool announced[DEVICES] = {pick(random, 2), pick(random, 2)};
    world.must_retire = world.version < 12000 || !announced[0] || !announced[1];
    for (int i = 0; i < PLACES; i++) {
        struct place *p = &world.place[i];
        cenote_options *o = &p->options;
        *p = (struct place){.device = i / 2, .is_primary = i % 2 == 0, .options = scene_options()};
        o->provider = providers[pick(random, 6)];
        o->page_mib = 2u << pick(random, 4);
        o->order = (uint32_t)pick(random, 3);
        o->handles = (uint32_t)pick(random, 2);
        o->aliases = pick(random, 4) ? CENOTE_ALIASES_ON : CENOTE_ALIASES_OFF;
        o->announced = p->announced = announced[p->device];
        o->trim_every = (uint32_t)pick(random, 3);
        o->decay_ms = pick(random, 3) ? 0 : 1;
        o->harvest_budget = (double)pick(random, 3) / 2 - 0.5;
        o->limit = pick(random, 3) ? 0 : (double)(60 * MIB);
        if (p->is_primary)
            open_primary(p);
        else
            DONE(cuCtxCreate(&p->context, NULL, 0, p->device));
        open_streams(i);
        begin_pool(p);
    }
}

static void end_world(void)
{
    struct sim_books books;
    for (int i = 0; i < PLACES; i++)
        give_all(i);
    sync_all();
    for (int i = 0; i < PLACES; i++)
        close_streams(i);
    for (int i = 0; i < PLACES; i++)
        end_pool(i);
    for (int i = 0; i < PLACES; i++) {
        if (world.place[i].is_primary)
            DONE(cuGreenCtxDestroy(world.green[world.place[i].device]));
        DONE(cuCtxSetCurrent(NULL));
        DONE(world.place[i].is_primary ? cuDevicePrimaryCtxRelease(world.place[i].device) : cuCtxDestroy(world.place[i].context));
    }
    sim_books(&books);
    EXPECT_EQ(books.used + books.reserved + books.handles + books.mappings + books.reservations + books.allocations, 0);
    EXPECT_EQ(books.pools + books.events + books.streams + books.contexts, 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    EXPECT_EQ(sim_mismatches(), 0);
    units_grade_pages = GRADE_PAGES;
    portions_end();
    version_set(VERSION_NEWEST);
}

static void run_world(uint64_t seed, int threads, bool resets)
{
    pthread_t thread[THREADS];
    uint64_t random = seed;
    design(&random);
    world.threads = threads;
    world.steps = STEPS * THREADS / threads;
    atomic_store(&world.failures, 0);
    for (int life = 0; life < LIVES && !world.failures; life++) {
        atomic_store(&refusing.every, world.refuses ? 37 + pick(&random, 400) : 0);
        for (int t = 0; t < threads; t++) {
            world.worker[t].number = t;
            world.worker[t].random = pick(&random, UINT64_MAX);
            REQUIRE(!pthread_create(&thread[t], NULL, live, &world.worker[t]));
        }
        for (int t = 0; t < threads; t++)
            pthread_join(thread[t], NULL);
        atomic_store(&refusing.every, 0);
        if (resets && world.version >= 12000 && !world.failures) /* before, no call says that a context is another one now */
            reset(2 * (int)pick(&random, DEVICES));
    }
    if (!world.failures)
        end_world();
    if (!world.failures && !CU_get_number_of_failures())
        return;
    fprintf(stderr, "\nworld with seed %llu: %s; %s\n", (unsigned long long)seed, world.why, sim_last_violation());
    CU_basic_show_failures(CU_get_failure_list());
    exit(1); /* what comes after it would say nothing */
}

static void run_worlds(int threads, bool resets)
{
    const char *text = getenv("WORLD_SEED");
    for (uint64_t seed = text ? strtoull(text, NULL, 0) : 1, last = seed + (uint64_t)rounds(10); seed < last; seed++)
        run_world(seed, threads, resets);
    EXPECT(world.refused && world.ended && world.captured && world.naps);
    fprintf(stderr, "(%u blocks, %u refused, %u pools ended, %u calls came too late, %u captures, %u naps) ", world.served, world.refused,
            world.ended, world.late, world.captured, world.naps);
    world.served = world.refused = world.late = world.ended = world.captured = world.naps = 0;
}

CASE(one_thread)
{
    run_worlds(1, false);
}

CASE(one_thread_and_resets)
{
    run_worlds(1, true);
}

CASE(threads)
{
    run_worlds(THREADS, false);
}

CASE(threads_and_resets)
{
    run_worlds(THREADS, true);
}

CASE(threads_resets_and_refusals)
{
    driver_interpose(now_and_then);
    world.refuses = true;
    run_worlds(THREADS, true);
    world.refuses = false;
}

SUITE_MAIN("stress: worlds")
