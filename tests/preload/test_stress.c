/*
 * test_stress.c: random programs on several threads, each with streams of its own, which take and give memory by every call of the driver that is
 * served, on a card that is behind and short of memory; one thread captures graphs beside them. Contents are the judge.
 *
 * A seed, each in a process of its own, makes a thread's choices. How threads interleave is not repeated.
 */
#include "tests/preload/card.h"
#include "tests/rounds.h"

#include <pthread.h>

#define THREADS 3
#define HELD 10
#define STEPS 400

struct player {
    uint64_t    random;
    CUstream    streams[2];
    CUmemoryPool pool;
    struct held held[HELD];
    bool        is_plain[HELD];
    unsigned    served, refused;
};

static uint64_t draw(struct player *p, uint64_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (p->random >> 33) % below;
}

/* What a stream other than the block's may do comes after what the block's own has been given. */
static void follow(CUstream before, CUstream after)
{
    if (before != after)
        order(before, after);
}

static void take(struct player *p, int i)
{
    CUstream stream = p->streams[draw(p, 2)];
    size_t bytes = draw(p, 3) ? 8 + draw(p, 64 * KIB) : MIB + draw(p, 7 * MIB);
    CUdeviceptr at = 0;
    uint64_t way = draw(p, 3);
    CUresult result = way == 0 ? cuMemAlloc(&at, bytes) : way == 1 ? cuMemAllocAsync(&at, bytes, stream)
                                                                   : cuMemAllocFromPoolAsync(&at, bytes, p->pool, stream);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        p->refused++;
        return;
    }
    p->served++;
    p->is_plain[i] = way == 0;
    p->held[i] = held_of((void *)(uintptr_t)at, bytes, stream);
}

static bool give(struct player *p, int i)
{
    struct held *held = &p->held[i];
    CUstream other = p->streams[draw(p, 2)];
    CUresult result;
    sim_launch_wait(held->stream, draw(p, 3) * MSEC); /* streams are not equally far behind */
    held_expect(held, held->stream);
    if (draw(p, 4) == 0) {
        result = p->is_plain[i] ? CUDA_SUCCESS : cuStreamSynchronize(held->stream); /* cuMemFree of stream memory: the program waits */
        result = result ? result : cuMemFree(at_of(held));
    } else {
        follow(held->stream, other);
        held_expect(held, other);
        result = cuMemFreeAsync(at_of(held), other);
    }
    held->at = NULL;
    return !result;
}

static void *play(void *arg)
{
    struct player *p = arg;
    bool is_fine = !cuCtxSetCurrent(card.context);
    for (int step = 0; step < STEPS && is_fine; step++) {
        int i = (int)draw(p, HELD);
        if (!p->held[i].at)
            take(p, i);
        else if (draw(p, 3) == 0) {
            CUstream other = p->streams[draw(p, 2)];
            follow(p->held[i].stream, other);
            held_expect(&p->held[i], other);
            follow(other, p->held[i].stream);
        } else {
            is_fine = give(p, i);
        }
    }
    for (int i = 0; i < HELD && is_fine; i++)
        if (p->held[i].at)
            is_fine = give(p, i);
    return is_fine ? NULL : p;
}

static atomic_bool stop;

/* In a mode that forbids nothing to others, and that frees of others must not end. */
static void *capture(void *stream)
{
    unsigned broken = 0;
    cuCtxSetCurrent(card.context);
    while (!atomic_load(&stop)) {
        CUgraph graph = NULL;
        CUdeviceptr at;
        broken += cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS;
        broken += cuMemAllocAsync(&at, 100 * KIB, stream) != CUDA_SUCCESS;
        broken += sim_launch_touch(stream, at, 100 * KIB) != CUDA_SUCCESS;
        broken += cuMemFreeAsync(at, stream) != CUDA_SUCCESS;
        usleep(300);
        broken += cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS || !graph;
        cuGraphDestroy(graph);
        usleep(300);
    }
    return (void *)(uintptr_t)broken;
}

static void play_all(uint64_t seed)
{
    struct player players[THREADS] = {0};
    pthread_t threads[THREADS], capturing;
    unsigned served = 0;
    void *said;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct sim_shape shape = scene_card(96 * MIB);
    shape.lag = MSEC / 10;
    scene_open_card(&card, &shape);
    atomic_store(&stop, false);
    for (int i = 0; i < THREADS; i++) {
        players[i].random = seed * THREADS + (uint64_t)i;
        for (int s = 0; s < 2; s++)
            DONE(cuStreamCreate(&players[i].streams[s], CU_STREAM_NON_BLOCKING));
        DONE(cuMemPoolCreate(&players[i].pool, &props));
    }
    REQUIRE(!pthread_create(&capturing, NULL, capture, card.stream[C]));
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, play, &players[i]));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &said);
        EXPECT(!said);
        served += players[i].served;
    }
    atomic_store(&stop, true);
    pthread_join(capturing, &said);
    EXPECT_EQ((uintptr_t)said, 0);
    EXPECT(served > 100);
    card_close();
    EXPECT_EQ(driver_allocations(), 0);
}

static uint64_t the_seed; /* of the next child */

static void play_the_seed(void)
{
    play_all(the_seed);
}

CASE(random_programs)
{
    for (the_seed = 1; the_seed <= (uint64_t)rounds(8); the_seed++)
        EXPECT_EQ(status_of(play_the_seed), 0);
}

PRELOAD_MAIN("stress")
