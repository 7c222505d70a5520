/*
 * test_ends.c: the device is reset, its context is released and retained again, the process forks.
 */
#include "tests/preload/card.h"

#include <pthread.h>
#include <sys/time.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* cuCtxAttach: what is deprecated is still called */

static void expect_served(void)
{
    struct held plain = plain_take(20 * MIB, card.stream[A]), async = stream_take(9 * MIB, card.stream[B]);
    REQUIRE(plain.at && async.at);
    EXPECT(is_ours(at_of(&plain)) && is_ours(at_of(&async)));
    held_expect(&plain, card.stream[A]);
    held_expect(&async, card.stream[B]);
    DONE(cuMemFreeAsync(at_of(&async), card.stream[B]));
    DONE(cuMemFree(at_of(&plain)));
}

/* All memory is gone, live or not, and so is all of cenote's; the program begins again. */
ON_CARD(a_reset)
{
    CUmemoryPool pool = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr pooled;
    DONE(cuMemPoolCreate(&pool, &props));
    for (int i = 0; i < 3; i++) {
        struct held plain = plain_take(20 * MIB, card.stream[A]), async = stream_take(9 * MIB, card.stream[B]);
        REQUIRE(plain.at && async.at);
        DONE(cuMemAllocFromPoolAsync(&pooled, 5 * MIB, pool, card.stream[C]));
        DONE(cuMemFreeAsync(at_of(&async), card.stream[A]));
        expect_served();
        DONE(cuDevicePrimaryCtxReset(0));
        EXPECT(!is_ours(at_of(&plain)) && !is_ours(pooled));
        EXPECT_EQ(used(), 0);
        DONE(cuDevicePrimaryCtxRetain(&card.context, 0));
        DONE(cuCtxSetCurrent(card.context));
        for (int s = 0; s < SCENE_STREAMS; s++)
            DONE(cuStreamCreate(&card.stream[s], CU_STREAM_NON_BLOCKING));
        expect_served();
    }
}

/* With the last release of all the context ends, as it does without cenote. */
ON_CARD(the_last_release)
{
    CUcontext again;
    struct sim_books books;
    sim_set_quiet(true);
    struct held plain = plain_take(20 * MIB, card.stream[A]);
    DONE(cuDevicePrimaryCtxRetain(&again, 0));
    DONE(cuDevicePrimaryCtxRelease(0));
    EXPECT(is_ours(at_of(&plain)));
    expect_served();
    sim_books(&books);
    EXPECT_EQ(books.contexts, 2); /* the program's and the place's */
    EXPECT_EQ(books.violations, 0);
    DONE(cuCtxPopCurrent(&again));
    DONE(cuDevicePrimaryCtxRelease(0));
    EXPECT(!is_ours(at_of(&plain)));
    sim_books(&books);
    EXPECT_EQ(books.used + books.contexts + books.streams + books.events, 0);
    EXPECT_EQ(books.violations, 0); /* released as often as it was retained */
    DONE(cuDevicePrimaryCtxRetain(&card.context, 0));
    DONE(cuCtxPushCurrent(card.context));
    for (int s = 0; s < SCENE_STREAMS; s++)
        DONE(cuStreamCreate(&card.stream[s], CU_STREAM_NON_BLOCKING));
    expect_served();
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    scene_is_open = false;
    exit(failures_said());
}

/* --- contexts that the program makes */

static int primary_is_active(void)
{
    unsigned flags;
    int active = 1;
    DONE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
}

/* A program that has such contexts alone: they have pools of their own, no primary one is made, and the memory that it forgets ends with them. */
ENDS_WITH(contexts_of_the_program_alone, 0)
{
    struct sim_shape shape = scene_card(CAPACITY);
    struct sim_books books;
    sim_reset(&shape);
    DONE(cuInit(0));
    for (int round = 0; round < 3; round++) {
        CUcontext own[2];
        CUstream stream;
        CUdeviceptr forgotten = 0;
        for (int i = 0; i < 2; i++) {
            DONE(cuCtxCreate(&own[i], NULL, 0, 0));
            DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            struct held plain = plain_take(20 * MIB, stream), async = stream_take(9 * MIB, stream), on_default = stream_take(MIB, NULL);
            EXPECT(is_ours(at_of(&plain)) && is_ours(at_of(&async)) && is_ours(at_of(&on_default)));
            held_expect(&plain, stream);
            held_expect(&async, stream);
            DONE(cuMemFreeAsync(at_of(&async), stream));
            DONE(cuMemFreeAsync(at_of(&on_default), NULL));
            DONE(cuMemFree(at_of(&plain)));
            DONE(cuMemAlloc(&forgotten, 30 * MIB));
        }
        EXPECT(!primary_is_active());
        sim_books(&books);
        EXPECT_EQ(books.allocations, 0);
        EXPECT_EQ(books.contexts, 2);
        DONE(cuCtxDestroy(own[1]));
        EXPECT(!is_ours(forgotten));
        DONE(cuCtxDestroy(own[0]));
        sim_books(&books);
        EXPECT_EQ(books.used + books.contexts + books.streams + books.events, 0);
        EXPECT_EQ(books.violations, 0);
        EXPECT_EQ(sim_mismatches(), 0);
    }
    exit(failures_said());
}

/* The memory of one context is used in another one of the device, and freed there; a pool that is full takes from what the other one keeps. */
ON_CARD(two_contexts_of_a_device)
{
    CUcontext own, popped;
    CUstream stream;
    struct held first = plain_take(150 * MIB, card.stream[A]);
    DONE(cuMemFree(at_of(&first)));
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    struct held second = plain_take(150 * MIB, stream);
    EXPECT(second.at && is_ours(at_of(&second)));
    held_linger(&second, stream);
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuMemFreeAsync(at_of(&second), card.stream[A]));
    struct held third = plain_take(200 * MIB, card.stream[A]);
    EXPECT(third.at && is_ours(at_of(&third)));
    held_expect(&third, card.stream[A]);
    DONE(cuMemFree(at_of(&third)));
    DONE(cuCtxPushCurrent(own));
    third = stream_take(20 * MIB, stream);
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxDestroy(own));
    EXPECT(!is_ours(at_of(&third)));
    expect_served();
}

/* A context that is attached to ends with its last detach, as PyCUDA's do, and no sooner. */
ON_CARD(a_context_that_is_detached)
{
    CUcontext own, same;
    CUstream stream;
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxAttach(&same, 0));
    EXPECT(same == own);
    struct held block = plain_take(20 * MIB, stream);
    EXPECT(is_ours(at_of(&block)));
    DONE(cuCtxDetach(own));
    EXPECT(is_ours(at_of(&block)));
    held_expect(&block, stream);
    DONE(cuCtxDetach(own));
    EXPECT(!is_ours(at_of(&block)));
    expect_served();
}

/* It ends while it captures, and while another one does. */
ON_CARD(a_context_ends_during_a_capture)
{
    for (int ours = 0; ours < 2; ours++) {
        CUcontext own;
        CUstream stream;
        CUgraph graph = NULL;
        CUdeviceptr at = 0;
        DONE(cuCtxCreate(&own, NULL, 0, 0));
        DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        DONE(cuMemAlloc(&at, 20 * MIB));
        DONE(cuStreamBeginCapture(ours ? stream : card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
        EXPECT(is_ours(at));
        DONE(cuCtxDestroy(own));
        EXPECT(!is_ours(at));
        if (!ours)
            DONE(cuStreamEndCapture(card.stream[A], &graph));
        if (graph)
            DONE(cuGraphDestroy(graph));
        expect_served();
    }
}

/* A part of the program has retained the context past the hooks, as a runtime may by its own table: no release that the hooks see ends it. */
ON_CARD(a_retain_past_the_hooks)
{
    union {
        void *from;
        CUresult (*to)(CUcontext *, CUdevice);
    } retain = {.from = past_the_hooks("cuDevicePrimaryCtxRetain")};
    CUcontext again;
    struct sim_books books;
    struct held plain = plain_take(20 * MIB, card.stream[A]), async = stream_take(9 * MIB, card.stream[B]);
    REQUIRE(retain.from && retain.from != dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain"));
    DONE(retain.to(&again, 0));
    for (int i = 0; i < 3; i++) {
        DONE(cuDevicePrimaryCtxRelease(0)); /* the only one that came by the hooks */
        EXPECT(is_ours(at_of(&plain)));
        held_expect(&plain, card.stream[A]);
        held_expect(&async, card.stream[B]);
        expect_served();
        DONE(cuDevicePrimaryCtxRetain(&again, 0));
        EXPECT_EQ(again, card.context);
    }
    sim_books(&books);
    EXPECT_EQ(books.contexts, 3); /* two of the program, and the place's */
    DONE(cuMemFreeAsync(at_of(&async), card.stream[B]));
    DONE(cuMemFree(at_of(&plain)));
}

/* A reset while a capture is open, and blocks wait for its end. */
ON_CARD(a_reset_during_a_capture)
{
    struct held plain = plain_take(20 * MIB, card.stream[B]);
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cuMemFree(at_of(&plain)));
    sim_set_quiet(true);
    DONE(cuDevicePrimaryCtxReset(0));
    EXPECT_EQ(used(), 0);
    DONE(cuDevicePrimaryCtxRetain(&card.context, 0));
    DONE(cuCtxSetCurrent(card.context));
    for (int s = 0; s < SCENE_STREAMS; s++)
        DONE(cuStreamCreate(&card.stream[s], CU_STREAM_NON_BLOCKING));
    expect_served();
    uint64_t before = sim_now();
    plain = plain_take(20 * MIB, card.stream[B]);
    held_linger(&plain, card.stream[B]);
    DONE(cuMemFree(at_of(&plain)));
    EXPECT(sim_now() - before >= 10 * MSEC); /* no capture is taken for open */
}

/* --- forks */

static int status_of_fork(int (*body)(CUdeviceptr), CUdeviceptr at)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        alarm(patience(HANGS));
        _exit(body(at));
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* The driver refuses a child of a process that uses it, and so does what stands before it. */
static int child_is_refused(CUdeviceptr at)
{
    CUdeviceptr own = 0;
    size_t left, total;
    return !cuMemAlloc(&own, 1000) || !cuMemFree(at) || !cuMemAllocAsync(&own, 1000, NULL) || !cuMemFreeAsync(at, NULL) ||
           !cuMemGetInfo(&left, &total);
}

ON_CARD(a_fork)
{
    struct held plain = plain_take(20 * MIB, card.stream[A]);
    sim_set_quiet(true);
    EXPECT_EQ(status_of_fork(child_is_refused, at_of(&plain)), 0);
    EXPECT(is_ours(at_of(&plain)));
    DONE(cuMemFree(at_of(&plain)));
    expect_served();
}

/* Threads hold our locks, and wait for the device, at the moment of the fork: the child waits for none of them. */
static atomic_bool stop;

static void *come_and_go(void *stream)
{
    cuCtxSetCurrent(card.context);
    while (!atomic_load(&stop)) {
        CUgraph graph = NULL;
        CUdeviceptr at = 0;
        if (!cuMemAlloc(&at, 40 * KIB))
            cuMemFree(at);
        if (!cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) && !cuStreamEndCapture(stream, &graph) && graph)
            cuGraphDestroy(graph);
    }
    return NULL;
}

static int child_calls_everything(CUdeviceptr at)
{
    CUgraph graph;
    size_t left;
    CUmemoryPool pool = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    cuMemGetAddressRange(NULL, &left, at);
    cuPointerGetAttribute(&left, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    cuStreamBeginCapture(card.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED);
    cuStreamEndCapture(card.stream[B], &graph);
    cuStreamDestroy(card.stream[B]);
    cuMemPoolCreate(&pool, &props);
    cuDevicePrimaryCtxReset(0);
    return child_is_refused(at);
}

ON_CARD(forks_beside_threads)
{
    pthread_t threads[2];
    FORKS_BESIDE_THREADS();
    struct held plain = plain_take(20 * MIB, card.stream[A]);
    sim_set_quiet(true);
    for (int i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, card.stream[1 + i]));
    for (int i = 0; i < 40; i++)
        EXPECT_EQ(status_of_fork(child_calls_everything, at_of(&plain)), 0);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    DONE(cuMemFree(at_of(&plain)));
}

/* Before the driver is used a child is a process like any other. */
static int child_is_served(CUdeviceptr unused)
{
    (void)unused;
    card_open(CAPACITY, 1);
    expect_served();
    card_close();
    return failures_said();
}

ENDS_WITH(a_fork_before_the_first_use, 0)
{
    EXPECT_EQ(status_of_fork(child_is_served, 0), 0);
    card_open(CAPACITY, 1);
    expect_served();
    card_close();
}

/* A thread comes to the device for the first time, again and again, while others fork; the children exit as programs do, with all handlers. */
static void *come_for_the_first_time(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        CUcontext context;
        CUdeviceptr at = 0;
        if (!cuDevicePrimaryCtxRetain(&context, 1) && !cuCtxSetCurrent(context) && !cuMemAlloc(&at, 40 * KIB))
            cuDevicePrimaryCtxReset(1);
        cuDevicePrimaryCtxRelease(1);
    }
    return NULL;
}

static int child_exits(CUdeviceptr unused)
{
    (void)unused;
    exit(0);
}

ENDS_WITH(forks_beside_a_first_allocation, 0)
{
    pthread_t thread;
    FORKS_BESIDE_THREADS();
    setenv("CENOTE_SUMMARY", "on", 1);
    card_open(CAPACITY, 2);
    struct held plain = plain_take(20 * MIB, card.stream[A]);
    sim_set_quiet(true);
    REQUIRE(!pthread_create(&thread, NULL, come_for_the_first_time, NULL));
    for (int i = 0; i < 60; i++)
        EXPECT_EQ(status_of_fork(child_exits, 0), 0);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    DONE(cuMemFree(at_of(&plain)));
    unsetenv("CENOTE_SUMMARY");
    scene_is_open = false;
    exit(failures_said());
}

/* Handlers that the program has set up before all run after cenote's own: while the driver answers, calls do as without cenote. */
static struct held left_over[3];

static void late(void)
{
    CUgraph graph = NULL;
    CUdeviceptr at = 0;
    DONE(cuMemFreeAsync(at_of(&left_over[0]), card.stream[B]));
    DONE(cuMemFree(at_of(&left_over[1])));
    DONE(cuMemFreeAsync(at_of(&left_over[2]), NULL));
    DONE(cuMemAllocAsync(&at, MIB, card.stream[A]));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    DONE(cuMemAlloc(&at, MIB));
    DONE(cuMemFree(at));
    DONE(cuStreamBeginCapture(card.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cuStreamEndCapture(card.stream[A], &graph));
    DONE(cuDevicePrimaryCtxReset(0));
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    _exit(failures_said());
}

/* As without the preload: what was of a context that the program has destroyed is refused. */
static void use_after_the_end(const char *is_on, bool reuses)
{
    CUcontext own;
    CUstream of_own;
    CUdeviceptr plain, in_order, at;
    struct sim_shape shape = scene_card(CAPACITY);
    setenv("CENOTE_PRELOAD", is_on, 1);
    shape.reuse_handles = reuses;
    scene_open_card(&card, &shape);
    sim_set_quiet(true);
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&of_own, CU_STREAM_NON_BLOCKING));
    DONE(cuMemAlloc(&plain, MIB));
    DONE(cuMemAllocAsync(&in_order, MIB, of_own));
    EXPECT_EQ(is_ours(plain), !strcmp(is_on, "on"));
    DONE(cuMemFreeAsync(in_order, of_own));
    DONE(cuCtxDestroy(own));
    DONE(cuCtxSetCurrent(NULL));
    EXPECT_EQ(cuMemAllocAsync(&at, MIB, of_own), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemFreeAsync(plain, of_own), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuMemFree(plain), CUDA_ERROR_INVALID_CONTEXT);
    DONE(cuCtxSetCurrent(card.context));
    EXPECT_EQ(cuMemAllocAsync(&at, MIB, of_own), CUDA_ERROR_INVALID_HANDLE); /* reuses: also where it is the handle of a stream of cenote's by now */
    EXPECT_EQ(cuStreamDestroy(of_own), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuMemFreeAsync(plain, of_own) != CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(plain), CUDA_ERROR_INVALID_VALUE);
    scene_is_open = false;
    exit(failures_said());
}

ENDS_WITH(a_destroyed_context_under_the_preload, 0) { use_after_the_end("on", false); }
ENDS_WITH(a_destroyed_context_whose_handles_are_given_again, 0) { use_after_the_end("on", true); }
ENDS_WITH(a_destroyed_context_without_it, 0) { use_after_the_end("off", false); }

ENDS_WITH(handlers_after_cenotes, 0)
{
    atexit(late);
    card_open(CAPACITY, 1);
    for (int i = 0; i < 3; i++)
        left_over[i] = i == 1 ? plain_take(3 * MIB, card.stream[A]) : stream_take(3 * MIB, card.stream[A]);
    scene_is_open = false;
    exit(3); /* not reached by all handlers: `late` ends it */
}

/* A place that cannot open says so once, and the driver serves. */
ENDS_WITH(a_place_that_cannot_open, 0)
{
    int pipes[2];
    char said[4096] = "";
    CUdeviceptr at[20];
    setenv("CENOTE_CONF", "provider:nonsense", 1);
    REQUIRE(!pipe(pipes));
    card_open(CAPACITY, 1);
    int stays = dup(2);
    dup2(pipes[1], 2);
    for (int i = 0; i < 20; i++)
        DONE(i & 1 ? cuMemAlloc(&at[i], 1000) : cuMemAllocAsync(&at[i], 1000, card.stream[A]));
    dup2(stays, 2);
    close(pipes[1]);
    REQUIRE(read(pipes[0], said, sizeof said - 1) > 0);
    const char *first = strstr(said, "is left to the driver");
    EXPECT(first && !strstr(first + 1, "is left to the driver"));
    for (int i = 0; i < 20; i++) {
        EXPECT(!is_ours(at[i]));
        DONE(i & 1 ? cuMemFree(at[i]) : cuMemFreeAsync(at[i], card.stream[A]));
    }
    unsetenv("CENOTE_CONF"); /* another context is another try */
    DONE(cuDevicePrimaryCtxReset(0));
    for (int s = 0; s < SCENE_STREAMS; s++)
        card.stream[s] = NULL;
    DONE(cuDevicePrimaryCtxRetain(&card.context, 0));
    DONE(cuCtxSetCurrent(card.context));
    for (int s = 0; s < SCENE_STREAMS; s++)
        DONE(cuStreamCreate(&card.stream[s], CU_STREAM_NON_BLOCKING));
    expect_served();
    card_close();
}

/* The program leaves its memory and its captures as they are, and ends. */
static void end_early(void)
{
    card_open(CAPACITY, 1);
    struct held plain = plain_take(20 * MIB, card.stream[A]);
    struct held async = stream_take(20 * MIB, card.stream[A]);
    EXPECT(plain.at && async.at);
    cuStreamBeginCapture(card.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED);
    scene_is_open = false;
    exit(failures_said());
}

ENDS_WITH(an_early_end, 0) { end_early(); }

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* whose own locks the handler may meet */
/* A handler may come while its thread has a lock of cenote's. It must not call CUDA, but it may exit, and cenote has things to say then. */
static void leave(int number)
{
    (void)number;
    exit(7);
}

static int tries;

static void exit_inside_a_call(void)
{
    setenv("CENOTE_SUMMARY", "on", 1);
    card_open(CAPACITY, 1);
    CUdeviceptr at = 0;
    DONE(cuMemAllocAsync(&at, MIB, card.stream[A]));
    DONE(cuMemFreeAsync(at, card.stream[A]));
    scene_is_open = false;
    alarm(patience(5)); /* a mutant waits for ever */
    signal(SIGVTALRM, leave);
    DONE(setitimer(ITIMER_VIRTUAL, &(struct itimerval){.it_value = {0, 1000 + 7 * tries}}, NULL));
    for (;;) {
        cuMemAllocAsync(&at, MIB, card.stream[A]);
        cuMemFreeAsync(at, card.stream[A]);
    }
}

CASE(exits_inside_a_call)
{
    int status = 7;
    for (tries = 0; tries < 12 && status == 7; tries++)
        status = status_of(exit_inside_a_call);
    EXPECT_EQ(status, 7);
}
#endif

PRELOAD_MAIN("ends")
