/*
 * test_crossing.c: random programs on several threads over two devices and four contexts, two of them the program's own: memory of one context is
 * taken on streams of another, used on the other context's streams and freed there, while threads make and destroy further contexts, streams and
 * pools, and one captures. Contents are the judge. Not test_stress.c, which has one context and more of what goes on in it.
 *
 * A seed, each in a process of its own, makes a thread's choices. How threads interleave is not repeated.
 */
#include "tests/preload/card.h"
#include "tests/rounds.h"

#include <pthread.h>
#include <sched.h>

#define CONTEXTS 4 /* the primary one of each device, then one of the program's own on each */
#define THREADS  3
#define STREAMS  4 /* of a thread in a context: two created ones, and the default ones */
#define HELD     10
#define STEPS    300
#define KEPT     200 /* blocks: the more there are, the longer is the look at each place */

static CUcontext contexts[CONTEXTS];
static atomic_uint wrong; /* answers that no program expects */
static atomic_ullong patterns;
static atomic_bool stop;

struct piece {
    CUdeviceptr at;
    size_t      bytes;
    uint64_t    pattern;
    CUstream    stream;
    int         context; /* of the stream */
    bool        is_plain;
};

struct player {
    uint64_t     random;
    CUstream     streams[CONTEXTS][STREAMS];
    CUmemoryPool pools[2];
    struct piece held[HELD];
    unsigned     served;
};

/* How the threads went on together does not come again, so the first answers are named. */
static void mistake(const char *what, int line, int result)
{
    if (atomic_fetch_add(&wrong, 1) < 5)
        fprintf(stderr, "    test_crossing.c:%d: %s: %d\n", line, what, result);
}

static void done_at(CUresult result, const char *call, int line)
{
    if (result)
        mistake(call, line, (int)result);
}

static bool granted_at(CUresult result, const char *call, int line)
{
    done_at(result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result, call, line);
    return !result;
}

#define done(x) done_at((x), #x, __LINE__)
#define granted(x) granted_at((x), #x, __LINE__) /* running out of memory is no mistake */
#define holds(x) ((x) ? (void)0 : mistake(#x, __LINE__, 0))

static uint64_t draw(struct player *p, uint64_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (p->random >> 33) % below;
}

static void enter(int context)
{
    done(cuCtxSetCurrent(contexts[context]));
}

static bool is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_PER_THREAD;
}

/* What `after` does comes after what `before` was given. */
static void follow(int of_before, CUstream before, int of_after, CUstream after)
{
    CUevent event;
    if (of_before == of_after && before == after)
        return;
    enter(of_before);
    done(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    done(cuEventRecord(event, before));
    enter(of_after);
    done(cuStreamWaitEvent(after, event, 0));
    done(cuEventDestroy(event));
}

static CUmemoryPool make_pool(int device)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool pool = NULL;
    done(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* A stream says whose memory it takes, whatever is current; a default one and cuMemAlloc go by what is current. */
static void take(struct player *p, struct piece *piece)
{
    int context = (int)draw(p, CONTEXTS), way = (int)draw(p, 3);
    CUstream stream = p->streams[context][draw(p, STREAMS)];
    size_t bytes = draw(p, 3) ? 8 + draw(p, 9000) * 8 : MIB + draw(p, 5) * MIB;
    CUdeviceptr at = 0;
    enter(way == 0 || is_default(stream) || draw(p, 4) ? context : (int)draw(p, CONTEXTS));
    if (!granted(way == 0 ? cuMemAlloc(&at, bytes) : way == 1 ? cuMemAllocAsync(&at, bytes, stream)
                                                              : cuMemAllocFromPoolAsync(&at, bytes, p->pools[context % 2], stream)))
        return;
    *piece = (struct piece){at, bytes, atomic_fetch_add(&patterns, 1) + 1, stream, context, way == 0};
    p->served++;
    enter(context);
    done(sim_launch_wait(stream, draw(p, 3) * MSEC / 10));
    done(sim_launch_fill(stream, at, piece->pattern, bytes));
    done(sim_launch_expect(stream, at, piece->pattern, bytes));
}

static void give(struct player *p, struct piece *piece)
{
    int context = draw(p, 3) ? piece->context : (piece->context + 2) % CONTEXTS; /* the other one of the device */
    CUstream stream = p->streams[context][draw(p, STREAMS)];
    enter(piece->context);
    done(sim_launch_wait(piece->stream, draw(p, 3) * MSEC / 10));
    done(sim_launch_expect(piece->stream, piece->at, piece->pattern, piece->bytes));
    if (draw(p, 3) == 0) {
        done(piece->is_plain ? CUDA_SUCCESS : cuStreamSynchronize(piece->stream)); /* cuMemFree of stream memory: the program waits */
        enter((int)draw(p, CONTEXTS));
        done(cuMemFree(piece->at));
    } else {
        follow(piece->context, piece->stream, context, stream);
        enter(context);
        done(sim_launch_expect(stream, piece->at, piece->pattern, piece->bytes));
        enter(is_default(stream) ? context : (int)draw(p, CONTEXTS));
        done(cuMemFreeAsync(piece->at, stream));
    }
    piece->at = 0;
}

static void renew_a_stream(struct player *p)
{
    int context = (int)draw(p, CONTEXTS), i = (int)draw(p, 2);
    for (int k = 0; k < HELD; k++)
        if (p->held[k].at && p->held[k].context == context && p->held[k].stream == p->streams[context][i])
            return;
    enter(context);
    done(cuStreamDestroy(p->streams[context][i]));
    done(cuStreamCreate(&p->streams[context][i], draw(p, 2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

/* A context ends with memory that is live, freed, and at work. */
static void live_in_a_context(struct player *p)
{
    CUcontext own;
    CUstream stream;
    CUdeviceptr at[3] = {0};
    if (!granted(cuCtxCreate(&own, NULL, 0, (int)draw(p, 2))))
        return;
    done(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++)
        if (granted(i == 1 ? cuMemAlloc(&at[i], MIB) : cuMemAllocAsync(&at[i], MIB, stream)))
            done(sim_launch_touch(stream, at[i], MIB));
    if (at[0] && draw(p, 2))
        done(cuMemFreeAsync(at[0], stream));
    if (at[1] && draw(p, 2))
        done(cuMemFree(at[1]));
    done(cuCtxDestroy(own));
}

static void *play(void *arg)
{
    struct player *p = arg;
    for (int c = 0; c < CONTEXTS; c++) {
        enter(c);
        done(cuStreamCreate(&p->streams[c][0], CU_STREAM_DEFAULT));
        done(cuStreamCreate(&p->streams[c][1], CU_STREAM_NON_BLOCKING));
        p->streams[c][3] = CU_STREAM_PER_THREAD;
    }
    for (int step = 0; step < STEPS; step++) {
        struct piece *piece = &p->held[draw(p, HELD)];
        int device = (int)draw(p, 2), what = (int)draw(p, 40);
        if (what == 0)
            renew_a_stream(p);
        else if (what == 1)
            live_in_a_context(p);
        else if (what == 2)
            done(cuMemPoolTrimTo(p->pools[device], 0));
        else if (what == 3) {
            done(cuMemPoolDestroy(p->pools[device]));
            p->pools[device] = make_pool(device);
        } else
            piece->at ? give(p, piece) : take(p, piece);
    }
    for (int i = 0; i < HELD; i++)
        if (p->held[i].at)
            give(p, &p->held[i]);
    return NULL;
}

/* `rest`: us, inside of a capture and between two. */
static void *capture(void *rest)
{
    CUstream stream;
    enter(0);
    done(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!atomic_load(&stop)) {
        CUgraph graph = NULL;
        done(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        done(sim_launch_wait(stream, 1));
        usleep((useconds_t)(intptr_t)rest);
        done(cuStreamEndCapture(stream, &graph));
        done(graph ? cuGraphDestroy(graph) : CUDA_ERROR_UNKNOWN);
        usleep((useconds_t)(intptr_t)rest);
    }
    return NULL;
}

static void open_contexts(void)
{
    struct sim_shape shape = scene_card(96 * MIB);
    shape.lag = MSEC / 10;
    shape.devices = 2;
    scene_open_card(&card, &shape);
    contexts[0] = card.context;
    DONE(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    for (int device = 0; device < 2; device++)
        DONE(cuCtxCreate(&contexts[2 + device], NULL, 0, device));
}

/* Nothing is live: the memory goes with the contexts, and by trims that wait. */
static void end_contexts(void)
{
    for (int device = 0; device < 2; device++) {
        CUdeviceptr at;
        cenote_block block;
        DONE(cuCtxDestroy(contexts[2 + device]));
        enter(device);
        DONE(cuMemAlloc(&at, 512));
        DONE(cenote_find((void *)(uintptr_t)at, &block));
        DONE(cuMemFree(at));
        DONE(cenote_pool_trim(block.pool, 0, CENOTE_TRIM_WAIT));
    }
}

static uint64_t the_seed; /* of the next child */

static void play_the_seed(void)
{
    struct player players[THREADS] = {0};
    pthread_t threads[THREADS], capturing;
    struct sim_books books;
    unsigned served = 0;
    open_contexts();
    for (int i = 0; i < THREADS; i++) {
        players[i].random = the_seed * THREADS + (uint64_t)i;
        for (int device = 0; device < 2; device++)
            players[i].pools[device] = make_pool(device);
    }
    REQUIRE(!pthread_create(&capturing, NULL, capture, (void *)300));
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, play, &players[i]));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        served += players[i].served;
    }
    atomic_store(&stop, true);
    pthread_join(capturing, NULL);
    for (int i = 0; i < 2 * THREADS; i++)
        DONE(cuMemPoolDestroy(players[i / 2].pools[i % 2]));
    end_contexts();
    sim_books(&books);
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(atomic_load(&wrong), 0);
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_EQ(driver_allocations(), 0);
    EXPECT(served > 100);
    scene_is_open = false;
}

CASE(random_programs_across_contexts)
{
    for (the_seed = 1; the_seed <= (uint64_t)rounds(4); the_seed++)
        EXPECT_EQ(status_of(play_the_seed), 0);
}

/* --- a thread that goes through all contexts, beside one that ends some */

static void *make_and_end_contexts(void *unused)
{
    (void)unused;
    for (int i = 0; i < rounds(2000); i++) {
        CUcontext own;
        CUdeviceptr at;
        done(cuCtxCreate(&own, NULL, 0, i % 2));
        done(cuMemAlloc(&at, MIB));
        holds(is_ours(at));
        done(cuCtxDestroy(own));
    }
    atomic_store(&stop, true);
    return NULL;
}

static void *make_and_end_streams(void *unused)
{
    (void)unused;
    enter(0);
    while (!atomic_load(&stop)) {
        CUstream stream;
        CUmemoryPool mempool;
        cuuint64_t reserved;
        done(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        done(cuDeviceGetDefaultMemPool(&mempool, 1));
        done(cuMemPoolGetAttribute(mempool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
        done(cuStreamDestroy(stream));
    }
    return NULL;
}

ENDS_WITH(contexts_end_beside_streams, 0)
{
    pthread_t threads[5];
    open_contexts();
    for (int i = 0; i < 5; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, i ? make_and_end_streams : make_and_end_contexts, NULL));
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    EXPECT_EQ(atomic_load(&wrong), 0);
    scene_is_open = false;
}

/* A block that is freed during a capture is kept until its end. Then a thread goes through all places, also those that are about to close. */
static void *end_contexts_with_kept_memory(void *number)
{
    int device = (int)(intptr_t)number % 2;
    for (int i = 0; i < rounds(400); i++) {
        CUcontext own;
        CUdeviceptr at[KEPT];
        done(cuCtxCreate(&own, NULL, 0, device));
        for (int k = 0; k < KEPT; k++)
            done(cuMemAlloc(&at[k], 512));
        for (int k = 0; k < KEPT; k++)
            done(cuMemFree(at[k]));
        done(cuCtxDestroy(own));
    }
    return NULL;
}

ENDS_WITH(contexts_end_beside_ends_of_captures, 0)
{
    pthread_t threads[8];
    struct sim_books books;
    open_contexts();
    for (int i = 0; i < 8; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, i < 4 ? end_contexts_with_kept_memory : capture, (void *)(intptr_t)(i % 4)));
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        atomic_store(&stop, i >= 3);
    }
    sim_books(&books);
    EXPECT_EQ(atomic_load(&wrong), 0);
    EXPECT_EQ(books.violations, 0);
    scene_is_open = false;
}

static void let_in_by_a_pool(void)
{
    CUmemoryPool mempool;
    CUmemAccessDesc one = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DONE(cuDeviceGetDefaultMemPool(&mempool, 0));
    DONE(cuMemPoolSetAccess(mempool, &one, 1));
}

/* The group of a program's pool goes with the context that it is in, and the pool goes on. */
static CUmemoryPool shared_pool;

static void *use_a_pool_in_contexts(void *unused)
{
    (void)unused;
    for (int i = 0; i < 100; i++) {
        CUcontext own;
        CUdeviceptr at;
        done(cuCtxCreate(&own, NULL, 0, 0));
        done(cuMemAllocFromPoolAsync(&at, MIB, shared_pool, CU_STREAM_PER_THREAD));
        holds(is_ours(at));
        done(cuCtxDestroy(own));
    }
    atomic_store(&stop, true);
    return NULL;
}

static void *ask_and_trim_a_pool(void *unused)
{
    (void)unused;
    enter(0);
    while (!atomic_load(&stop)) {
        cuuint64_t used;
        done(cuMemPoolGetAttribute(shared_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
        holds(used <= MIB);
        done(cuMemPoolTrimTo(shared_pool, 0));
        let_in_by_a_pool();
    }
    return NULL;
}

static void ask_beside_ends(void)
{
    pthread_t threads[3];
    cuuint64_t used;
    open_contexts();
    shared_pool = make_pool(0);
    for (int i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, i ? ask_and_trim_a_pool : use_a_pool_in_contexts, NULL));
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    DONE(cuMemPoolGetAttribute(shared_pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    EXPECT_EQ(used, 0);
    EXPECT_EQ(atomic_load(&wrong), 0);
    scene_is_open = false;
}

/* The device that the pool is opened to is served from the first time on: a process for each. */
CASE(contexts_end_beside_questions_about_their_pool)
{
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(status_of(ask_beside_ends), 0);
}

/* A block that was freed during a capture of another device waits for its end; but its context ends before. The next block there is another one. */
ENDS_WITH(a_block_that_is_kept_ends_with_its_context, 0)
{
    CUstream captured;
    CUgraph graph;
    CUdeviceptr at, again;
    CUcontext of;
    open_contexts();
    enter(1);
    DONE(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    enter(2);
    DONE(cuMemAlloc(&at, MIB));
    DONE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cuMemFree(at));
    EXPECT_EQ(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, at), CUDA_ERROR_INVALID_VALUE);
    DONE(cuCtxDestroy(contexts[2]));
    DONE(cuCtxCreate(&contexts[2], NULL, 0, 0));
    DONE(cuMemAlloc(&again, MIB));
    EXPECT_EQ(again, at); /* or this says nothing */
    DONE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, again));
    EXPECT_EQ(of, contexts[2]);
    DONE(cuMemFree(again));
    DONE(cuStreamEndCapture(captured, &graph));
    DONE(cuGraphDestroy(graph));
    scene_is_open = false;
    exit(failures_said());
}

/* --- ends that meet what cenote does for others */

static int is_active(int device)
{
    unsigned flags;
    int active = 0;
    done(cuDevicePrimaryCtxGetState(device, &flags, &active));
    return active;
}

/* With the program's last release the context ends, whichever device has used its memory. */
ENDS_WITH(the_last_release_of_another_device, 0)
{
    CUdeviceptr at[2];
    open_contexts();
    for (int i = 0; i < 2; i++) {
        enter(i);
        DONE(cuMemAlloc(&at[i], MIB));
        EXPECT(is_ours(at[i]));
    }
    enter(0);
    DONE(cuDevicePrimaryCtxRelease(1));
    EXPECT(!is_active(1));
    EXPECT(!is_ours(at[1]));
    DONE(cuMemFree(at[0]));
    scene_is_open = false;
    exit(failures_said());
}

/* What a pool of device 0 gives is used and freed on two of its streams. */
static void take_and_free_in_turns(void)
{
    CUstream streams[2];
    enter(0);
    for (int i = 0; i < 2; i++)
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 40; i++) {
        CUdeviceptr at;
        DONE(cuMemAllocAsync(&at, (size_t)(1 + i % 7 * 10) * MIB, streams[i % 2]));
        DONE(sim_launch_wait(streams[i % 2], MSEC));
        DONE(cuMemFreeAsync(at, streams[i % 2]));
    }
}

static void let_in_by_its_context(void)
{
    enter(1);
    DONE(cuCtxEnablePeerAccess(contexts[0], 0));
}

static void release_after(void (*let_in)(void), bool is_late)
{
    open_contexts();
    if (is_late)
        take_and_free_in_turns();
    let_in();
    take_and_free_in_turns();
    DONE(cuDevicePrimaryCtxRelease(1));
    EXPECT(!is_active(1));
    take_and_free_in_turns();
    EXPECT(!is_active(1));
    scene_is_open = false;
    exit(failures_said());
}

/* The same for a device that takes no memory, and may use that of another one. */
ENDS_WITH(the_last_release_of_a_device_that_is_let_in, 0) { release_after(let_in_by_its_context, false); }
ENDS_WITH(the_last_release_of_a_device_that_a_pool_lets_in, 0) { release_after(let_in_by_a_pool, false); }
ENDS_WITH(the_last_release_of_a_device_that_a_pool_lets_in_late, 0) { release_after(let_in_by_a_pool, true); }

/* The pool lets it in before the program has a context there, or while it has none. */
ENDS_WITH(a_device_that_is_let_in_has_no_context_of_cenotes, 0)
{
    CUcontext context;
    open_contexts();
    DONE(cuDevicePrimaryCtxRelease(1));
    EXPECT(!is_active(1));
    let_in_by_a_pool();
    take_and_free_in_turns();
    EXPECT(!is_active(1));
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    take_and_free_in_turns();
    DONE(cuDevicePrimaryCtxRelease(1));
    EXPECT(!is_active(1));
    scene_is_open = false;
    exit(failures_said());
}

static void *use_a_device_in_turns(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        CUcontext context;
        CUdeviceptr at;
        done(cuDevicePrimaryCtxRetain(&context, 1));
        done(cuCtxSetCurrent(context));
        done(cuMemAlloc(&at, MIB));
        done(cuMemFree(at));
        done(cuCtxSetCurrent(NULL));
        done(cuDevicePrimaryCtxRelease(1));
        while (is_active(1) && !atomic_load(&stop)) /* cenote may have it for a moment, on the other thread */
            sched_yield();
    }
    holds(!is_active(1));
    return NULL;
}

static atomic_int ended;

static void *make_and_end_here(void *unused)
{
    (void)unused;
    while (atomic_fetch_add(&ended, 1) < 10000 && !atomic_load(&stop)) {
        CUcontext own;
        CUdeviceptr at;
        done(cuCtxCreate(&own, NULL, 0, 0));
        done(cuMemAlloc(&at, MIB));
        done(cuCtxDestroy(own));
    }
    atomic_store(&stop, true);
    return NULL;
}

ENDS_WITH(last_releases_beside_ends_of_contexts, 0)
{
    pthread_t threads[4];
    struct sim_shape shape = scene_card(96 * MIB);
    shape.devices = 2;
    scene_open_card(&card, &shape);
    for (int i = 0; i < 4; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, i ? make_and_end_here : use_a_device_in_turns, NULL));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    EXPECT_EQ(atomic_load(&wrong), 0);
    scene_is_open = false;
    exit(failures_said());
}

PRELOAD_MAIN("crossing")
