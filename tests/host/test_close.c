/*
 * test_close.c: pinned memory is closed while threads that have used it end, and by two threads at once. What a thread kept is given back once,
 * by the thread or by the one that closes.
 */
#include "host/host.h"
#include "tests/host/pinned.h"
#include "tests/patience.h"
#include "tests/rounds.h"

#include <pthread.h>

#define THREADS 48
#define BLOCKS 16 /* that each thread keeps when it ends */

static atomic_int refused;
static atomic_int last_thread; /* that has made its last call */
static CUcontext context;
static pthread_barrier_t ends;
static pthread_key_t before_the_library; /* its destructor runs first, for it was there first */

/* The thread has made its last call; what it keeps is given back next. */
static void end_together(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&ends);
}

__attribute__((constructor)) static void make_key(void)
{
    pthread_key_create(&before_the_library, end_together);
}

static void *use_and_end(void *arg)
{
    void *block[BLOCKS];
    cuCtxSetCurrent(context);
    for (int i = 0; i < BLOCKS; i++)
        atomic_fetch_add(&refused, cenote_host_alloc(0, i % 8 ? 1 * KIB : 64 * KIB, &block[i]) != CENOTE_OK);
    for (int i = 0; i < BLOCKS; i++)
        atomic_fetch_add(&refused, cenote_host_free(block[i]) != CENOTE_OK);
    pthread_setspecific(before_the_library, &ends);
    atomic_store(&last_thread, gettid());
    return arg;
}

static void open_card(struct scene *scene)
{
    struct sim_shape shape = scene_card(64 * MIB);
    pinned_write_machine_down();
    scene_open_card(scene, &shape);
    context = scene->context;
    atomic_store(&refused, 0);
}

/* It waits for what the caller has. False: it has ended. */
static bool waits(int thread)
{
    char path[64];
    struct wait wait = {0};
    int looks = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d", thread);
    while (looks < 20 && !access(path, F_OK) && wait_on(&wait))
        looks = is_asleep(thread) ? looks + 1 : 0;
    return looks == 20;
}

/* What a thread kept is its own until no other can be closing: what closes has the same lock from start to end. */
CASE(a_thread_that_ends_waits_for_the_one_that_closes)
{
    struct scene scene;
    pthread_t thread;
    open_card(&scene);
    struct wait wait = {0};
    atomic_store(&last_thread, 0);
    pthread_barrier_init(&ends, NULL, 2);
    REQUIRE_EQ(pthread_create(&thread, NULL, use_and_end, NULL), 0);
    while (!atomic_load(&last_thread) && wait_on(&wait))
        ;
    lock_take(&host_opening);
    pthread_barrier_wait(&ends);
    EXPECT(waits(atomic_load(&last_thread)));
    lock_give(&host_opening);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&ends);
    EXPECT_EQ(refused, 0);
    pinned_close(&scene);
}

static pthread_key_t at_the_end;
static atomic_int last_calls;

/*
 * Rounds that POSIX promises. The thread sanitizer lets go of a thread in the last one, and the library is called once more in the round after the
 * last that calls it.
 */
#ifdef __SANITIZE_THREAD__
#define LAST_ROUNDS (PTHREAD_DESTRUCTOR_ITERATIONS - 2)
#else
#define LAST_ROUNDS PTHREAD_DESTRUCTOR_ITERATIONS
#endif

/* What a destructor of the program may do, in each round that the system gives it. */
static void call_at_the_end(void *rounds)
{
    cenote_host_block found;
    void *small = NULL, *large = NULL;
    int error = cenote_host_alloc(0, 600, &small);
    if (error)
        EXPECT(error == CENOTE_OUT_OF_HOST_MEMORY && strstr(cenote_host_message(), "about to end"));
    else
        EXPECT(!cenote_host_find(small, &found) && found.start == small);
    DONE(cenote_host_alloc(0, 100 * KIB, &large));
    DONE(cenote_host_use(large, 0, CU_STREAM_PER_THREAD));
    DONE(cenote_host_free(large));
    DONE(cenote_host_free(small));
    if (atomic_fetch_add(&last_calls, 1) + 1 < LAST_ROUNDS)
        pthread_setspecific(at_the_end, rounds);
}

static void *end_with_calls(void *arg)
{
    cuCtxSetCurrent(context);
    DONE(cenote_host_free(pinned_take(600)));
    pthread_setspecific(at_the_end, &at_the_end);
    return arg;
}

/* jemalloc has left the thread before, and gives it memory of its own, whatever arena is named. */
CASE(a_thread_calls_when_it_ends)
{
    struct scene scene;
    pthread_t thread;
    open_card(&scene);
    REQUIRE_EQ(pthread_key_create(&at_the_end, call_at_the_end), 0);
    REQUIRE_EQ(pthread_create(&thread, NULL, end_with_calls, NULL), 0);
    pthread_join(thread, NULL);
    EXPECT(atomic_load(&last_calls) >= LAST_ROUNDS);
    pthread_key_delete(at_the_end);
    pinned_close(&scene);
}

CASE(threads_end_while_it_closes)
{
    struct scene scene;
    open_card(&scene);
    for (int round = 0; round < rounds(300); round++) {
        pthread_t thread[THREADS];
        pthread_barrier_init(&ends, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++)
            REQUIRE_EQ(pthread_create(&thread[i], NULL, use_and_end, NULL), 0);
        pthread_barrier_wait(&ends);
        DONE(cenote_host_close());
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        pthread_barrier_destroy(&ends);
    }
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(pinned_chunks(), 0);
    pinned_close(&scene);
}

/* Again, and pinned memory is open anew when the threads of before end. */
CASE(threads_end_while_it_is_opened_again)
{
    struct scene scene;
    open_card(&scene);
    for (int round = 0; round < rounds(75); round++) {
        pthread_t thread[THREADS];
        void *block = NULL;
        pthread_barrier_init(&ends, NULL, THREADS + 1);
        for (int i = 0; i < THREADS; i++)
            REQUIRE_EQ(pthread_create(&thread[i], NULL, use_and_end, NULL), 0);
        pthread_barrier_wait(&ends);
        DONE(cenote_host_close());
        DONE(cenote_host_alloc(0, 2 * KIB, &block));
        DONE(cenote_host_free(block));
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
        pthread_barrier_destroy(&ends);
        DONE(cenote_host_check());
    }
    EXPECT_EQ(refused, 0);
    pinned_close(&scene);
}

/* It has used what was closed, and there is no memory to keep anything of what is open now. */
static void *outlive_and_end(void *arg)
{
    void *block;
    DONE(cenote_host_free(pinned_take(2 * KIB)));
    DONE(cenote_host_close());
    DONE(cenote_host_stream_set_immortal(0, NULL)); /* opens all that a thread shares with others */
    memory_fail(1, true);
    EXPECT_EQ(cenote_host_alloc(0, 2 * KIB, &block), CENOTE_OUT_OF_HOST_MEMORY);
    memory_fail(0, false);
    return arg;
}

CASE(a_thread_ends_that_was_refused)
{
    struct scene scene;
    pthread_t thread;
    open_card(&scene);
    REQUIRE_EQ(pthread_create(&thread, NULL, outlive_and_end, NULL), 0);
    pthread_join(thread, NULL);
    DONE(cenote_host_check());
    pinned_close(&scene);
}

static void *close_it(void *barrier)
{
    pthread_barrier_wait(barrier);
    atomic_fetch_add(&refused, cenote_host_close() != CENOTE_OK);
    return NULL;
}

CASE(two_threads_close_at_once)
{
    struct scene scene;
    pthread_barrier_t barrier;
    open_card(&scene);
    pthread_barrier_init(&barrier, NULL, 2);
    for (int round = 0; round < rounds(150); round++) {
        pthread_t other;
        char *block = pinned_take(64 * KIB);
        DONE(sim_launch_wait(scene.stream[A], MSEC));
        DONE(cenote_host_use(block, 0, scene.stream[A]));
        DONE(cenote_host_free(block));
        REQUIRE_EQ(pthread_create(&other, NULL, close_it, &barrier), 0);
        close_it(&barrier);
        pthread_join(other, NULL);
    }
    pthread_barrier_destroy(&barrier);
    EXPECT_EQ(refused, 0);
    pinned_close(&scene);
}

SCENES_MAIN("closing")
