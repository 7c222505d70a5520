/*
 * test_threads.c: eight threads take blocks, copy from them with copies in flight, hand them to each other and free each other's. Every block
 * knows what it holds: handed out too early, or twice, it shows.
 */
#include "tests/host/pinned.h"
#include "tests/membarrier.h"
#include "tests/rounds.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS 8
#define SLOTS 64
#define STEPS 3000

static void *_Atomic shelf[SLOTS];      /* blocks that wait for the next thread that takes them */
static _Atomic uint64_t wrong, refused, taken;
static CUcontext context;

/* A block says in its first words its number and its length, and repeats it to its end. */
static void fill(uint64_t *block, size_t bytes)
{
    uint64_t name = atomic_fetch_add(&taken, 1) * 0x9e3779b97f4a7c15u | 1;
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; i += i < 4 || i + 66 > words ? 1 : 64)
        block[i] = i == 1 ? words : name;
}

static void check(const uint64_t *block)
{
    size_t words = block[1];
    for (size_t i = 0; i < words; i += i < 4 || i + 66 > words ? 1 : 64)
        if (i != 1 && block[i] != block[0])
            atomic_fetch_add(&wrong, 1);
}

static void end_of(void *block, CUstream stream, CUdeviceptr there, uint64_t random)
{
    check(block);
    if (random % 3 == 0) {
        cuMemcpyHtoDAsync(there, block, 32, stream);
        atomic_fetch_add(&refused, cenote_host_use(block, 0, stream) != 0);
    }
    atomic_fetch_add(&refused, cenote_host_free(block) != 0);
}

static void *work(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg * 7919 + 1;
    CUstream stream;
    CUdeviceptr there;
    cuCtxSetCurrent(context);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&there, 512);
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        void *block = NULL;
        size_t bytes = 32 + (random >> 30) % (random % 20 ? 30000 : 1000000);
        if (cenote_host_alloc(0, bytes, &block)) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        fill(block, bytes);
        void *other = atomic_exchange(&shelf[(random >> 40) % SLOTS], block);
        if (other)
            end_of(other, stream, there, random);
        if (step % 1000 == 500)
            cenote_host_trim(0, 0);
        if (step % 700 == 1)
            cenote_host_step();
    }
    cuStreamSynchronize(stream);
    cuMemFree(there);
    cuStreamDestroy(stream);
    return NULL;
}

static void eight_threads(void)
{
    struct scene scene;
    pthread_t thread[THREADS];
    struct sim_shape shape = scene_card(64 * MIB);
    shape.manual_clock = false;
    shape.lag = 20000;
    cenote_host_options options = pinned_options();
    options.trim_every = 2;
    scene_open_card(&scene, &shape);
    DONE(cenote_host_open(&options));
    context = scene.context;
    for (int round = 0; round < 2; round++) { /* the second time with what the threads of the first left */
        for (int i = 0; i < THREADS; i++)
            REQUIRE_EQ(pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(round * THREADS + i)), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < SLOTS; i++) {
        void *left = atomic_exchange(&shelf[i], NULL);
        if (left)
            check(left);
        DONE(cenote_host_free(left));
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(pinned_stats().blocks.total_in, 2 * THREADS * STEPS);
    pinned_close(&scene);
}

CASE(threads_take_blocks_and_free_those_of_others)
{
    eight_threads();
}

static atomic_bool over;

static void *take_and_trim(void *arg)
{
    cuCtxSetCurrent(context);
    for (int i = 0; i < rounds(4000); i++) {
        void *block = NULL;
        atomic_fetch_add(&refused, cenote_host_alloc(0, 3 * MIB, &block) || cenote_host_free(block) || cenote_host_trim(0, 0));
    }
    atomic_store(&over, true);
    return arg;
}

CASE(the_books_agree_while_chunks_come_and_go)
{
    struct scene scene;
    pthread_t thread;
    pinned_open(&scene);
    context = scene.context;
    REQUIRE_EQ(pthread_create(&thread, NULL, take_and_trim, NULL), 0);
    int broken = 0;
    while (!atomic_load(&over))
        broken += cenote_host_check() != CENOTE_OK;
    pthread_join(thread, NULL);
    EXPECT_EQ(broken, 0);
    EXPECT_EQ(refused, 0);
    pinned_close(&scene);
}

/* From here on the system answers that it has no membarrier, as old ones and some sandboxes do. The last case: it is for good. */
CASE(the_same_without_membarrier)
{
    REQUIRE(membarrier_forbid());
    eight_threads();
}

SCENES_MAIN("threads")
