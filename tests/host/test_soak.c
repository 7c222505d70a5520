/*
 * test_soak.c: random programs of pinned memory with the GPU behind: threads take blocks of all sizes, copy from them and into them on streams of all
 * kinds, capture graphs and replay them, hand blocks to each other, and end while their copies run, on one device or two, with a driver that has no
 * ids of streams in some, and with calls that fail in some. Copies read and write when they run. So a block that was handed out too early is found by
 * its words: what a copy read is compared on the device, what lies in a block is compared here.
 *
 * Environment variables: SOAK_SEED (the first), SOAK_STEPS (operations of a thread), CENOTE_TEST_ROUNDS (more seeds: rounds.h).
 */
#include "base/memory.h"
#include "host/host.h"
#include "tests/host/pinned.h"
#include "tests/rounds.h"

#include <pthread.h>

#define THREADS 5
#define SHELF   48
#define SHARED  4           /* streams that live as long as the program, of all threads */
#define WORDS   16          /* of a block that take part */
#define COPY    (WORDS * 8)
#define ROOMS   8           /* on the device, of each thread: a copy into one waits for the one before */
#define LOW     (16 * MIB)  /* of what may be registered, in some programs */

enum stream_kind { SHARED_STREAM, DEFAULT_STREAM, OWN_STREAM, NEW_STREAM, KINDS };

struct program {            /* what a seed decides */
    uint64_t seed;
    bool     announced, ids, limited, faults;
    int      devices;
};

struct worker {
    struct soak *soak;
    uint64_t     random;
    CUdeviceptr  room[ROOMS];
    CUevent      last[ROOMS];   /* behind the last work on the room */
    CUdeviceptr  far;           /* room on the second device */
    int          next;
    CUstream     stream;        /* the one of NEW_STREAM */
    int          left;          /* operations until it is another one */
};

struct soak {
    struct program   program;
    CUcontext        context, second;
    CUstream         shared[SHARED];
    CUstream         far;           /* of the second device, if there is one */
    void *_Atomic    shelf[SHELF];
    pthread_rwlock_t captures;      /* readers: threads that capture; announced, nothing may wait for the device then */
    _Atomic uint64_t wrong, refused, names;
    int              steps;
};

static uint64_t pick(uint64_t *random, uint64_t below)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

/* Driver calls of cenote's and host memory fail in some programs: then calls may be refused, but for a free, and contents are right all the same. */
static void may(struct soak *soak, int error)
{
    bool excused = soak->program.faults && (error == CENOTE_DRIVER || error == CENOTE_OUT_OF_HOST_MEMORY);
    if (error && !excused && !atomic_fetch_add(&soak->refused, 1))
        fprintf(stderr, "seed %llu: %d: %s\n", (unsigned long long)soak->program.seed, error, cenote_host_message());
}

static void must(struct soak *soak, int error)
{
    if (error && !atomic_fetch_add(&soak->refused, 1))
        fprintf(stderr, "seed %llu: %d: %s\n", (unsigned long long)soak->program.seed, error, cenote_host_message());
}

/* Some call after this one fails, of all threads. */
static void order_a_fault(struct worker *w)
{
    static const char *const calls[] = {"cuMemHostRegister", "cuMemHostUnregister", "cuEventCreate", "cuEventRecord", "cuEventQuery",
                                        "cuEventDestroy", "cuEventSynchronize", "cuCtxSynchronize", "cuCtxPushCurrent", "cuStreamGetId",
                                        "cuStreamIsCapturing"};
    if (pick(&w->random, 12) == 0)
        memory_fail(1 + pick(&w->random, 4), false);
    else
        fault_arm(calls[pick(&w->random, sizeof calls / sizeof *calls)], 1 + pick(&w->random, 30), CUDA_ERROR_OUT_OF_MEMORY, false);
}

/* ------------------------------------------------------------------------------------------------------------------ what blocks hold */

static void fill(struct soak *soak, uint64_t *block)
{
    uint64_t name = atomic_fetch_add(&soak->names, 1) * 0x9e3779b97f4a7c15u | 1;
    for (int i = 0; i < WORDS; i++)
        block[i] = name;
}

static void check(struct soak *soak, const uint64_t *block)
{
    for (int i = 1; i < WORDS; i++)
        if (block[i] != block[0])
            atomic_fetch_add(&soak->wrong, 1);
}

static uint64_t *take(struct worker *w)
{
    static const size_t sizes[] = {COPY, 600, 4 * KIB, 14 * KIB, 15 * KIB, 100 * KIB, 2 * MIB, 3 * MIB};
    void *block = NULL;
    size_t bytes = sizes[pick(&w->random, pick(&w->random, 8) ? 6 : 8)] + 8 * pick(&w->random, 64);
    int error = cenote_host_alloc((int)pick(&w->random, (uint64_t)w->soak->program.devices), bytes, &block);
    if (error == CENOTE_OUT_OF_HOST_MEMORY && w->soak->program.limited)
        return NULL;
    may(w->soak, error);
    if (block)
        fill(w->soak, block);
    return block;
}

/* --------------------------------------------------------------------------------------------------------------------- what is done */

static CUstream some_stream(struct worker *w)
{
    switch (pick(&w->random, KINDS)) {
    case SHARED_STREAM:
        return w->soak->shared[pick(&w->random, SHARED)];
    case DEFAULT_STREAM:
        return pick(&w->random, 2) ? NULL : CU_STREAM_LEGACY;
    case OWN_STREAM:
        return CU_STREAM_PER_THREAD;
    default:
        break;
    }
    if (w->left-- > 0)
        return w->stream;
    if (w->stream)
        must(w->soak, cuStreamDestroy(w->stream)); /* with work on it */
    must(w->soak, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
    w->left = (int)pick(&w->random, 6);
    return w->stream;
}

/* Room on the device for one copy, with an order of its own between streams. */
static int room_for(struct worker *w, CUstream stream)
{
    int room = w->next++ % ROOMS;
    must(w->soak, cuStreamWaitEvent(stream, w->last[room], 0));
    return room;
}

/* A refusal for lack of memory notes nothing: the program waits. */
static void use(struct worker *w, uint64_t *block, int device, CUstream stream)
{
    int error = cenote_host_use(block, device, stream);
    may(w->soak, error);
    if (error == CENOTE_OUT_OF_HOST_MEMORY)
        must(w->soak, cuStreamSynchronize(stream));
}

/* On the other device. */
static void copy_far(struct worker *w, uint64_t *block)
{
    CUstream stream = w->soak->far;
    must(w->soak, cuCtxPushCurrent(w->soak->second));
    must(w->soak, cuMemcpyHtoDAsync(w->far, block, COPY, stream));
    use(w, block, 1, stream);
    must(w->soak, sim_launch_expect(stream, w->far, block[0], COPY));
    must(w->soak, cuCtxPopCurrent(NULL));
}

/* The device reads the block when the copy runs, and says whether it had the right words. */
static void copy_from(struct worker *w, uint64_t *block)
{
    CUstream stream = some_stream(w);
    int room = room_for(w, stream);
    if (pick(&w->random, 2))
        must(w->soak, sim_launch_wait(stream, pick(&w->random, 100) * 1000));
    must(w->soak, cuMemcpyHtoDAsync(w->room[room], block, COPY, stream));
    use(w, block, 0, stream);
    must(w->soak, sim_launch_expect(stream, w->room[room], block[0], COPY));
    must(w->soak, cuEventRecord(w->last[room], stream));
}

/* The device writes into a block that nothing reads when the copy runs. The block is freed at once. */
static void copy_into(struct worker *w, uint64_t *block)
{
    CUstream stream = some_stream(w);
    int room = room_for(w, stream);
    must(w->soak, sim_launch_fill(stream, w->room[room], pick(&w->random, UINT64_MAX) | 1, COPY));
    must(w->soak, cuMemcpyDtoHAsync(block, w->room[room], COPY, stream));
    use(w, block, 0, stream);
    must(w->soak, cuEventRecord(w->last[room], stream));
    must(w->soak, cenote_host_free(block));
}

/* A graph with copies from the block, replayed on streams that cenote is not told of, or, unannounced, on immortal ones alone. */
static void capture(struct worker *w, uint64_t *block)
{
    struct soak *soak = w->soak;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    int room = w->next++ % ROOMS;
    must(soak, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_rwlock_rdlock(&soak->captures);
    must(soak, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int copies = (int)pick(&w->random, 4) + 1; copies; copies--) {
        must(soak, cuMemcpyHtoDAsync(w->room[room], block, COPY, stream));
        must(soak, cenote_host_use(block, 0, stream));
    }
    must(soak, sim_launch_expect(stream, w->room[room], block[0], COPY));
    must(soak, cuStreamEndCapture(stream, &graph));
    pthread_rwlock_unlock(&soak->captures);
    must(soak, cuGraphInstantiate(&exec, graph, 0));
    must(soak, cuStreamDestroy(stream));
    for (int replays = (int)pick(&w->random, 4); replays; replays--) {
        CUstream on = soak->program.announced ? some_stream(w) : soak->shared[pick(&w->random, SHARED)];
        must(soak, cuStreamWaitEvent(on, w->last[room], 0));
        must(soak, cuGraphLaunch(exec, on));
        must(soak, cuEventRecord(w->last[room], on));
    }
    must(soak, cenote_host_free(block));
    must(soak, cuGraphExecDestroy(exec));
    must(soak, cuGraphDestroy(graph));
}

static void look_on(struct worker *w, const void *block)
{
    struct soak *soak = w->soak;
    cenote_host_block found;
    cenote_host_stats stats;
    switch (pick(&w->random, 7)) {
    case 0:
        may(soak, cenote_host_trim(pick(&w->random, 2) * LOW, 0));
        break;
    case 1:
        if (soak->program.announced)
            pthread_rwlock_wrlock(&soak->captures);
        may(soak, cenote_host_trim(0, CENOTE_TRIM_WAIT));
        if (soak->program.announced)
            pthread_rwlock_unlock(&soak->captures);
        break;
    case 2:
        may(soak, cenote_host_step());
        break;
    case 3:
        must(soak, cenote_host_check());
        break;
    case 4:
        must(soak, cenote_host_node_stats(-1, &stats) || cenote_host_reset_peaks());
        break;
    case 5: /* without captures the promise may come and go */
        if (soak->program.faults)
            may(soak, cenote_host_set_announced((int)pick(&w->random, 2)));
        break;
    default:
        must(soak, cenote_host_find((const char *)block + COPY - 1, &found) || found.start != block);
        break;
    }
}

static void worker_begins(struct worker *w, struct soak *soak, uint64_t seed)
{
    *w = (struct worker){.soak = soak, .random = seed};
    must(soak, cuCtxSetCurrent(soak->context));
    for (int i = 0; i < ROOMS; i++) {
        must(soak, cuMemAlloc(&w->room[i], COPY));
        must(soak, cuEventCreate(&w->last[i], CU_EVENT_DISABLE_TIMING));
    }
    if (!soak->second)
        return;
    must(soak, cuCtxPushCurrent(soak->second));
    must(soak, cuMemAlloc(&w->far, COPY));
    must(soak, cuCtxPopCurrent(NULL));
}

/* Its rooms are in use. */
static void worker_ends(struct worker *w)
{
    if (w->stream)
        must(w->soak, cuStreamDestroy(w->stream));
}

/* The device has done all. */
static void worker_frees(const struct worker *w)
{
    for (int i = 0; i < ROOMS; i++) {
        must(w->soak, cuEventDestroy(w->last[i]));
        must(w->soak, cuMemFree(w->room[i]));
    }
    must(w->soak, w->far ? cuMemFree(w->far) : CUDA_SUCCESS);
}

static void operate(struct worker *w, uint64_t *block)
{
    check(w->soak, block);
    for (uint64_t copies = pick(&w->random, 4); copies; copies--)
        copy_from(w, block);
    if (w->far && !pick(&w->random, 4))
        copy_far(w, block);
    if (w->soak->program.faults && !pick(&w->random, 8))
        order_a_fault(w);
    if (!pick(&w->random, 8))
        look_on(w, block);
    switch (pick(&w->random, 4)) {
    case 0:
        if (w->soak->program.faults) /* an allocation that fails otherwise waits for the device, which would end a capture */
            must(w->soak, cenote_host_free(block));
        else
            capture(w, block);
        break;
    case 1: /* the next thread has it, with the copies on their way */
        block = atomic_exchange(&w->soak->shelf[pick(&w->random, SHELF)], block);
        if (block)
            check(w->soak, block);
        must(w->soak, cenote_host_free(block));
        break;
    default:
        must(w->soak, cenote_host_free(block));
        break;
    }
}

/* A thread that ends with its copies on their way. */
static void *brief(void *arg)
{
    struct worker *w = arg;
    must(w->soak, cuCtxSetCurrent(w->soak->context));
    for (int i = 0; i < 3; i++) {
        uint64_t *block = take(w);
        if (block)
            operate(w, block);
    }
    return NULL;
}

static void *work(void *arg)
{
    struct worker *w = arg, *other = w + 1;
    struct soak *soak = w->soak;
    pthread_t thread;
    worker_begins(w, soak, w->random);
    worker_begins(other, soak, w->random + 1);
    for (int step = 0; step < soak->steps; step++) {
        uint64_t *block = take(w);
        if (block && !pick(&w->random, 6)) {
            copy_into(w, block);
            continue;
        }
        if (pick(&w->random, 3))
            block = atomic_exchange(&soak->shelf[pick(&w->random, SHELF)], block);
        if (block)
            operate(w, block);
        if (pick(&w->random, 20))
            continue;
        must(soak, pthread_create(&thread, NULL, brief, other));
        pthread_join(thread, NULL);
    }
    worker_ends(w);
    worker_ends(other);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------------- programs */

static void open_soak(struct soak *soak, struct scene *scene)
{
    const struct program *p = &soak->program;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_host_options options = pinned_options();
    shape.manual_clock = false;
    shape.lag = 300000;
    shape.devices = p->devices;
    options.announced = p->announced;
    options.limit = p->limited ? LOW : 0;
    options.trim_every = 3;
    options.decay_ms = 1;
    options.large_kib = (uint32_t[]){14, 0, 1, 64}[p->seed / 2 % 4];
    options.chunk_mib = p->seed % 5 ? 64 : 2;
    options.huge_pages = p->seed % 7 == 0;
    options.topology = p->seed % 3 == 0 ? TOPOLOGIES "two-nodes.xml" : NULL;
    scene_open_card(scene, &shape);
    if (!p->ids)
        sim_hide("cuStreamGetId");
    DONE(cenote_host_open(&options));
    soak->context = scene->context;
    pthread_rwlock_init(&soak->captures, NULL);
    if (p->devices > 1) {
        DONE(cuDevicePrimaryCtxRetain(&soak->second, 1));
        DONE(cuCtxPushCurrent(soak->second));
        DONE(cuStreamCreate(&soak->far, CU_STREAM_NON_BLOCKING));
        DONE(cuCtxPopCurrent(NULL));
    }
    for (int i = 0; i < SHARED; i++) {
        DONE(cuStreamCreate(&soak->shared[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_host_stream_set_immortal(0, soak->shared[i]));
    }
}

static void close_soak(struct soak *soak, struct scene *scene)
{
    struct host *h = atomic_load(&host_opened);
    for (int i = 0; i < SHELF; i++) {
        uint64_t *left = atomic_exchange(&soak->shelf[i], NULL);
        if (left)
            check(soak, left);
        must(soak, cenote_host_free(left));
    }
    EXPECT_EQ(soak->wrong, 0);
    EXPECT_EQ(soak->refused, 0);
    DONE(cuCtxSynchronize());
    if (soak->program.faults)
        DONE(cenote_host_set_announced(1)); /* what has no event waits for the device as a whole */
    DONE(cenote_host_trim(0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(pinned_stats().pending_blocks, 0);
    EXPECT_EQ(pinned_stats().blocks.current, 0);
    EXPECT_EQ(h->uses.used - 1 - h->uses.free_count, 0);
    EXPECT_EQ(atomic_load(&h->captured), 0);
    for (int i = 0; i < SHARED; i++)
        DONE(cuStreamDestroy(soak->shared[i]));
    pthread_rwlock_destroy(&soak->captures);
    if (soak->second) {
        DONE(cuStreamDestroy(soak->far));
        DONE(cuDevicePrimaryCtxRelease(1));
    }
    pinned_close(scene);
}

static void run(struct program program, int steps)
{
    static struct soak soak;
    struct scene scene;
    struct worker worker[2 * THREADS]; /* each thread's, and that of the brief ones that it makes */
    pthread_t thread[THREADS];
    memset(&soak, 0, sizeof soak);
    soak.program = program;
    soak.steps = steps;
    open_soak(&soak, &scene);
    for (int i = 0; i < THREADS; i++) {
        worker[2 * i] = (struct worker){.soak = &soak, .random = program.seed * 1000 + (uint64_t)i * 100};
        REQUIRE_EQ(pthread_create(&thread[i], NULL, work, &worker[2 * i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    fault_disarm();
    memory_fail(0, false);
    DONE(cuCtxSynchronize());
    if (soak.far)
        DONE(cuStreamSynchronize(soak.far));
    for (int i = 0; i < 2 * THREADS; i++)
        worker_frees(&worker[i]);
    close_soak(&soak, &scene);
    if (CU_get_number_of_failures())
        fprintf(stderr, "seed %llu failed\n", (unsigned long long)program.seed);
}

static void run_all(bool announced, bool faults)
{
    const char *first = getenv("SOAK_SEED"), *steps = getenv("SOAK_STEPS");
    uint64_t seed = first ? strtoull(first, NULL, 0) : 1;
    pinned_write_machine_down();
    for (int i = 0; i < rounds(4) && !CU_get_number_of_failures(); i++, seed++) {
        struct program program = {seed, announced, .ids = seed % 3 != 0, .faults = faults};
        program.limited = !announced && seed % 2;
        program.devices = seed % 2 ? 1 : 2;
        run(program, steps ? atoi(steps) : 400);
    }
}

CASE(captures_are_announced)
{
    run_all(true, false);
}

CASE(captures_are_not_announced)
{
    run_all(false, false);
}

CASE(calls_fail)
{
    run_all(true, true);
}

SCENES_MAIN("soak")
