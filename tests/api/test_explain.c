/*
 * test_explain.c: explanations of states that really came about, on a simulated card that other processes use too: whether the figures are the
 * driver's, and whether the advice is the one that helps.
 *
 * A holder is this program, started anew, that takes memory and keeps it until its pipe closes.
 */
#include "tests/api/explain.h"
#include "tests/patience.h"

/* ------------------------------------------------------------------------------------------------------------------ other processes */

struct holder {
    int   process;  /* that holds the memory */
    int   pipe;     /* closed: it ends */
};

static int hold(size_t bytes, int answer, int end)
{
    CUcontext context;
    CUdeviceptr at;
    char byte = 0;
    int me = (int)getpid();
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc(&at, bytes))
        return 1;
    bool told = write(answer, &me, sizeof me) == sizeof me;
    while (told && read(end, &byte, 1) > 0)
        ;
    return 0;
}

enum tie { CHILD, LEFT_BY_A_RUN, SERVICE };

/*
 * A run that ends without its worker: the worker stays in the group that the run led. A service leads a group of its own, and no process misses
 * what started it.
 */
static void start(struct holder *h, size_t bytes, enum tie tie)
{
    int answer[2], end[2];
    REQUIRE(!pipe(answer) && !pipe(end));
    fflush(NULL);
    pid_t first = fork();
    if (!first) {
        char program[256], arguments[3][32];
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        close(end[1]);
        setenv("CENOTE_SIM", shape_text, 1);
        snprintf(arguments[0], 32, "%zu", bytes);
        snprintf(arguments[1], 32, "%d", answer[1]);
        snprintf(arguments[2], 32, "%d", end[0]);
        if (tie != CHILD) {
            setsid();
            if (fork())
                _exit(0);
        }
        if (tie == SERVICE)
            setsid();
        execl(program, program, "--hold", arguments[0], arguments[1], arguments[2], (char *)NULL);
        _exit(2);
    }
    close(answer[1]);
    close(end[0]);
    h->pipe = end[1];
    if (tie != CHILD)
        waitpid(first, NULL, 0);
    REQUIRE_EQ(read(answer[0], &h->process, sizeof h->process), sizeof h->process);
    close(answer[0]);
}

/* It has let go when its memory is free again. */
static void end(struct holder *h, size_t left)
{
    size_t now = 0, total;
    close(h->pipe);
    struct wait wait = {0};
    do
        DONE(cuMemGetInfo(&now, &total));
    while (now < left && wait_on(&wait));
    EXPECT(now >= left);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static size_t left_now(void)
{
    size_t left, total;
    DONE(cuMemGetInfo(&left, &total));
    return left;
}

CASE(the_table_is_what_the_driver_counts)
{
    struct scene scene;
    struct held held;
    cenote_pool *second;
    struct holder other;
    CUdeviceptr beside;
    void *block;
    open_scene(&scene, NULL);
    REQUIRE(held_take(&held, scene.pool, 100 * MIB, scene.stream[A]));
    cenote_options options = scene_options();
    DONE(cenote_pool_create(0, &options, &second));
    DONE(cenote_alloc(second, 10 * MIB, scene.stream[A], &block));
    DONE(cuMemAlloc(&beside, 50 * MIB));
    explain_now(scene.pool);
    EXPECT(says("GPU 0 has a total capacity of 1.00 GiB of which 832.00 MiB is free."));
    EXPECT(says("Including non-cenote memory, this process has 192.00 MiB memory in use."));
    EXPECT(says("In use on GPU 0, as nvidia-smi counts: 192.00 MiB"));
    EXPECT(says("    100.00 MiB  pages of cenote: 100.00 MiB in 1 block\n"));
    EXPECT(says("     10.00 MiB  1 other pool of this process"));
    EXPECT(says("     32.00 MiB  CUDA context of this process (estimated)"));
    EXPECT(says("     50.00 MiB  taken past cenote in this process"));
    EXPECT(says("       0 bytes  unexplained"));
    EXPECT(keeps_quiet_of("Advice:"));
    size_t left = left_now();
    start(&other, 68 * MIB, SERVICE);
    explain_now(scene.pool);
    char line[96];
    snprintf(line, sizeof line, "Process %d has 100.00 MiB memory in use.", other.process);
    EXPECT(says(line));
    snprintf(line, sizeof line, "    100.00 MiB  process %d (", other.process);
    EXPECT(says(line));
    EXPECT(says("not told apart")); /* it came after us: what was in use before says nothing of our context */
    end(&other, left);
    sim_set_foreign(0, 200 * MIB); /* of a process that is not listed */
    explain_now(scene.pool);
    EXPECT(says("    200.00 MiB  unexplained"));
    EXPECT(says("fuser -v"));
    sim_set_foreign(0, 0);
    DONE(cuMemFree(beside));
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(second));
    held_give(&held);
    scene_close(&scene);
}

CASE(a_foreign_process)
{
    struct scene scene;
    struct holder other;
    char words[64];
    open_scene(&scene, NULL);
    size_t left = left_now();
    start(&other, 600 * MIB, SERVICE);
    run_out(scene.pool, 500 * MIB, scene.stream[A]);
    snprintf(words, sizeof words, "Other processes (%d) hold 632.00 MiB", other.process);
    EXPECT(says(words));
    EXPECT(keeps_quiet_of("after exit"));
    run_out(scene.pool, 1000 * MIB, scene.stream[A]); /* it would not fit without the other either */
    EXPECT(says("too much for this GPU"));
    end(&other, left);
    scene_close(&scene);
}

CASE(a_process_that_a_run_left_behind)
{
    struct scene scene;
    struct holder other;
    char words[128];
    open_scene(&scene, NULL);
    size_t left = left_now();
    start(&other, 600 * MIB, LEFT_BY_A_RUN);
    run_out(scene.pool, 500 * MIB, scene.stream[A]);
    snprintf(words, sizeof words, "`kill %d` gives it back", other.process);
    EXPECT(says("Advice: Memory was not freed after exit: 632.00 MiB"));
    EXPECT(says(words));
    EXPECT(says("--hold 629145600"));
    EXPECT(says(": memory not freed after exit, its run has ended"));
    end(&other, left);
    scene_close(&scene);
}

CASE(a_child_of_this_process)
{
    struct scene scene;
    struct holder other;
    char words[96];
    open_scene(&scene, NULL);
    size_t left = left_now();
    start(&other, 600 * MIB, CHILD);
    run_out(scene.pool, 500 * MIB, scene.stream[A]);
    snprintf(words, sizeof words, "Processes that this one started (%d) hold 632.00 MiB", other.process);
    EXPECT(says(words));
    EXPECT(keeps_quiet_of("after exit"));
    EXPECT(keeps_quiet_of("Other processes ("));
    end(&other, left);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------ our own doing */

static void *take(cenote_pool *pool, size_t bytes, CUstream stream)
{
    void *block = NULL;
    DONE(cenote_alloc(pool, bytes, stream, &block));
    return block;
}

CASE(too_much_for_the_card)
{
    struct scene scene;
    void *held;
    open_scene(&scene, NULL);
    held = take(scene.pool, 700 * MIB, scene.stream[A]);
    run_out(scene.pool, 400 * MIB, scene.stream[B]);
    EXPECT(says("Tried to allocate 400.00 MiB."));
    EXPECT(says("108.00 MiB too much for this GPU: 700.00 MiB is live and 400.00 MiB was asked for"));
    DONE(cenote_block_set_kind(held, CENOTE_KIND_ACTIVATIONS));
    run_out(scene.pool, 400 * MIB, scene.stream[B]);
    EXPECT(says("at most 90 % of this batch"));
    run_out(scene.pool, CARD + 1, scene.stream[B]);
    EXPECT(says("larger than the whole GPU, by 1 bytes"));
    EXPECT(keeps_quiet_of("too much for this GPU"));
    run_out(scene.pool, SIZE_MAX - 4, scene.stream[B]);
    EXPECT(says("Tried to allocate more than 1EB memory."));
    EXPECT(says("computed wrong"));
    DONE(cenote_free(held));
    scene_close(&scene);
}

CASE(a_limit_that_is_too_low)
{
    struct scene scene;
    void *held;
    open_scene(&scene, NULL);
    DONE(cenote_pool_set_limit(scene.pool, 200 * MIB));
    held = take(scene.pool, 150 * MIB, scene.stream[A]);
    run_out(scene.pool, 100 * MIB, scene.stream[A]);
    EXPECT(says("200.00 MiB allowed; "));
    EXPECT(says("The limit of 200.00 MiB stands in the way"));
    run_out(scene.pool, 950 * MIB, scene.stream[A]); /* the card has not got it either */
    EXPECT(keeps_quiet_of("stands in the way"));
    DONE(cenote_free(held));
    scene_close(&scene);
}

CASE(steps_that_leave_more_and_more)
{
    struct scene scene;
    void *kept[12];
    open_scene(&scene, NULL);
    for (int i = 0; i < 5; i++) {
        DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &kept[i]));
        DONE(cenote_pool_step(scene.pool));
    }
    explain_now(scene.pool);
    EXPECT(keeps_quiet_of("left more behind")); /* four steps grew: the first has none before it */
    for (int i = 5; i < 10; i++) {
        DONE(cenote_alloc(scene.pool, 8 * MIB, scene.stream[A], &kept[i]));
        DONE(cenote_pool_step(scene.pool));
    }
    run_out(scene.pool, 1000 * MIB, scene.stream[A]);
    EXPECT(says("Each of the last 9 steps left more behind than the one before, 8.00 MiB a step, 72.00 MiB in all"));
    DONE(cenote_pool_step(scene.pool)); /* level */
    explain_now(scene.pool);
    EXPECT(keeps_quiet_of("left more behind"));
    for (int i = 0; i < 10; i++)
        DONE(cenote_free(kept[i]));
    scene_close(&scene);
}

/* Pages are free, but a graph may write to them. */
CASE(private_pools)
{
    struct scene scene;
    cenote_group *group;
    void *live;
    void *block, *small;
    open_scene(&scene, NULL);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 400 * MIB, 1, scene.stream[A], &block));
    DONE(group_alloc(group, 2 * MIB, 1, scene.stream[A], &small));
    live = take(scene.pool, 300 * MIB, scene.stream[A]);
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(says("too much for this GPU")); /* all of the group is live: nothing is frozen in vain */
    EXPECT(says("with 402.00 MiB allocated in groups, and"));
    DONE(cenote_free(block));
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(says("400.00 MiB of what is cached may not move"));
    EXPECT(says("400.00 MiB frozen"));
    EXPECT(keeps_quiet_of("without a live block"));
    DONE(cenote_free(small));
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(says("402.00 MiB lies in 1 private group without a live block"));
    DONE(cenote_group_destroy(group));
    DONE(cenote_alloc(scene.pool, 400 * MIB, scene.stream[A], &block)); /* as was advised */
    DONE(cenote_free(block));
    DONE(cenote_free(live));
    scene_close(&scene);
}

CASE(memory_in_flight_while_a_graph_is_captured)
{
    struct scene scene;
    cenote_group *group;
    void *block;
    open_scene(&scene, NULL);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    block = take(scene.pool, 800 * MIB, scene.stream[A]);
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    DONE(cenote_free(block));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[C]));
    DONE(cuStreamBeginCapture(scene.stream[C], CU_STREAM_CAPTURE_MODE_GLOBAL));
    run_out(scene.pool, 500 * MIB, scene.stream[B]);
    EXPECT(says("800.00 MiB that was freed may still be in use on streams, and while a graph is being captured"));
    CUgraph graph;
    DONE(cuStreamEndCapture(scene.stream[C], &graph)); /* nothing we asked has broken it */
    DONE(cuGraphDestroy(graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[C]));
    DONE(cenote_free(take(scene.pool, 500 * MIB, scene.stream[B]))); /* the capture was what stood in the way */
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(segments_that_cannot_move)
{
    struct scene scene;
    void *held[16];
    cenote_options options = scene_options();
    options.provider = CENOTE_PLAIN;
    open_scene(&scene, &options);
    for (int i = 0; i < 15; i++)
        held[i] = take(scene.pool, 60 * MIB, scene.stream[A]);
    uint64_t segments = scene_stats(scene.pool).pages_created;
    run_out(scene.pool, 200 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("segments that cannot move"));
    for (int i = 0; i < 15; i++) /* the first of each is live: whole segments go back to the driver */
        DONE(cenote_free(held[i]));
    void *small[400];
    int count = 0;
    while (count < 400 && !cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &small[count]))
        count++;
    for (int i = 0; i < count; i++)
        if (i % 4)
            DONE(cenote_free(small[i]));
    run_out(scene.pool, 300 * MIB, scene.stream[A]);
    EXPECT(says("of what is cached lies in segments that cannot move, between blocks that live on: provider:vmm"));
    for (int i = 0; i < count; i += 4)
        DONE(cenote_free(small[i]));
    EXPECT(segments > 0);
    scene_close(&scene);
}

/* A freed block that waits is counted as that, and not again with what lies beside it. */
CASE(what_waits_is_counted_once)
{
    static const struct {
        uint32_t provider;
        unsigned flags;
        const char *says;
    } cases[] = {{CENOTE_PLAIN, 0, "12.00 MiB cached: 8.00 MiB waiting for streams, 4.00 MiB in segments that cannot move\n"},
                 {CENOTE_VMM, CENOTE_GROUP_PRIVATE, "8.00 MiB cached: 8.00 MiB waiting for streams\n"},
                 {CENOTE_VMM, 0, "8.00 MiB cached: 8.00 MiB waiting for streams\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene scene;
        void *freed, *live;
        cenote_group *group;
        cenote_options options = scene_options();
        options.provider = cases[i].provider;
        open_scene(&scene, &options);
        DONE(cenote_group_create(scene.pool, "some", cases[i].flags, NULL, &group));
        DONE(group_alloc(group, 8 * MIB, 512, scene.stream[A], &freed));
        DONE(group_alloc(group, 8 * MIB, 512, scene.stream[A], &live));
        DONE(sim_launch_wait(scene.stream[B], 10 * MSEC));
        DONE(cenote_use(freed, scene.stream[B]));
        DONE(cenote_free(freed));
        explain_now(scene.pool);
        EXPECT(says(cases[i].says));
        DONE(cenote_free(live));
        DONE(cuCtxSynchronize());
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        explain_now(scene.pool);
        EXPECT(keeps_quiet_of("waiting for streams"));
        DONE(cenote_group_destroy(group));
        scene_close(&scene);
    }
}

/* Small blocks that live on, one in each page: what lies between them is enough, and of no use. */
CASE(memory_between_blocks)
{
    struct scene scene;
    void *small[1000];
    int count = 0;
    open_scene(&scene, NULL);
    while (count < 1000 && !cenote_alloc(scene.pool, 512 * 1024, scene.stream[A], &small[count]))
        count++;
    for (int i = 0; i < count; i++)
        if (i % 4)
            DONE(cenote_free(small[i]));
    run_out(scene.pool, 700 * MIB, scene.stream[A]);
    EXPECT(says("lies between blocks that live on, less than a page of 2.00 MiB at a time. Allocate what lives long first"));
    run_out(scene.pool, 900 * MIB, scene.stream[A]); /* it would not fit if all of it could be had */
    EXPECT(keeps_quiet_of("between blocks that live on"));
    for (int i = 0; i < count; i += 4)
        DONE(cenote_free(small[i]));
    scene_close(&scene);
}

/* The same on a device that another process fills, and under a limit: the other process, or the limit, comes first. */
CASE(memory_between_blocks_of_a_full_device)
{
    struct scene scene;
    struct holder other;
    void *small[1000];
    char words[96];
    int count = 0;
    open_scene(&scene, NULL);
    start(&other, 500 * MIB, SERVICE);
    while (count < 1000 && !cenote_alloc(scene.pool, 512 * 1024, scene.stream[A], &small[count]))
        count++;
    for (int i = 0; i < count; i++)
        if (i % 4)
            DONE(cenote_free(small[i]));
    run_out(scene.pool, 200 * MIB, scene.stream[A]);
    snprintf(words, sizeof words, "Advice: Other processes (%d) hold 532.00 MiB, which leaves 492.00 MiB for this one.", other.process);
    EXPECT(says(words));
    EXPECT(says("    or: ") && says("lies between blocks that live on"));
    end(&other, left_now() + 500 * MIB);
    DONE(cenote_pool_set_limit(scene.pool, 500 * MIB));
    run_out(scene.pool, 200 * MIB, scene.stream[A]);
    EXPECT(says("Advice: The limit of 500.00 MiB stands in the way"));
    EXPECT(says("    or: ") && says("lies between blocks that live on"));
    for (int i = 0; i < count; i += 4)
        DONE(cenote_free(small[i]));
    scene_close(&scene);
}

CASE(blocks_that_share_nothing)
{
    struct scene scene;
    cenote_group *group;
    void *block[400];
    open_scene(&scene, NULL);
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group));
    for (int i = 0; i < 400; i++)
        DONE(group_alloc(group, MIB, 1, scene.stream[A], &block[i]));
    run_out(scene.pool, 500 * MIB, scene.stream[A]);
    EXPECT(says("400.00 MiB lies beside blocks that share no page with others (CENOTE_GROUP_WHOLE, no_split)"));
    run_out(scene.pool, 700 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("no_split"));
    for (int i = 0; i < 400; i++)
        DONE(cenote_free(block[i]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(memory_taken_past_cenote)
{
    struct scene scene;
    CUdeviceptr beside;
    void *block;
    open_scene(&scene, NULL);
    DONE(cenote_alloc(scene.pool, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cuMemAlloc(&beside, 600 * MIB)); /* after cenote's first allocation: what was there before may belong to any process */
    run_out(scene.pool, 500 * MIB, scene.stream[A]);
    EXPECT(says("600.00 MiB of this process was taken past cenote"));
    DONE(cuMemFree(beside));
    DONE(cuMemAlloc(&beside, 80 * MIB)); /* as a library may */
    run_out(scene.pool, 1010 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("of this process was taken past cenote"));
    EXPECT(says("80.00 MiB  taken past cenote"));
    DONE(cuMemFree(beside));
    scene_close(&scene);
}

CASE(the_first_of_several_devices_is_full)
{
    struct scene scene;
    void *held;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    shape.devices = 4;
    scene_open_with(&scene, &shape, &options);
    held = take(scene.pool, 800 * MIB, scene.stream[A]);
    sim_set_foreign(2, 500 * MIB);
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(says("Other GPUs of which nearly nothing is in use: 1, 3\n"));
    EXPECT(says(".to(\"cuda:1\")"));
    for (int device = 1; device < 4; device++)
        sim_set_foreign(device, 500 * MIB);
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("Other GPUs"));
    for (int device = 1; device < 4; device++)
        sim_set_foreign(device, 0);
    DONE(cenote_free(held));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------ what the program knows */

struct known {
    int calls, phase, keeps_history;
    uint64_t peak, gradients;
    cenote_moment came; /* as cenote filled it in */
    size_t asks;    /* bytes that it asks for itself, in vain */
};

static void tell(cenote_pool *pool, cenote_moment *moment, void *arg)
{
    struct known *known = arg;
    void *block;
    known->calls++;
    known->came = *moment;
    moment->phase = known->phase;
    moment->keeps_history = known->keeps_history;
    moment->training_peak = known->peak;
    moment->gradients = known->gradients;
    if (known->asks)
        EXPECT_EQ(cenote_alloc(pool, known->asks, NULL, &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_pool_check(pool)); /* no lock is held */
}

CASE(what_the_program_knows)
{
    struct scene scene;
    void *held;
    struct known known = {.phase = CENOTE_PHASE_EVALUATION, .keeps_history = 1};
    open_scene(&scene, NULL);
    held = take(scene.pool, 700 * MIB, scene.stream[A]);
    DONE(cenote_pool_step(scene.pool));
    DONE(cenote_on_moment(tell, &known));
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT_EQ(known.calls, 1);
    EXPECT_EQ(known.came.bytes, 400 * MIB);
    EXPECT_EQ(known.came.phase, cenote_phase_now());
    EXPECT_EQ(known.came.keeps_history, -1);
    EXPECT_EQ(known.came.training_peak, 700 * MIB);
    EXPECT_EQ(known.came.gradients, 0);
    EXPECT(says("This is evaluation, and it keeps history"));
    known.keeps_history = 0;
    known.peak = 900 * MIB;
    DONE(cenote_phase_set(CENOTE_PHASE_BACKWARD));
    DONE(cenote_block_set_kind(held, CENOTE_KIND_GRADIENTS));
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(says("Evaluation needs 1.07 GiB, more than training at its peak, 900.00 MiB"));
    EXPECT(keeps_quiet_of("keeps history"));
    EXPECT_EQ(known.came.phase, CENOTE_PHASE_BACKWARD);
    EXPECT_EQ(known.came.gradients, 700 * MIB);
    DONE(cenote_phase_set(CENOTE_PHASE_NONE));
    known.peak = 1200 * MIB;
    known.gradients = 200 * MIB;
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("more than training"));
    EXPECT(says("Gradients of the last training step hold 200.00 MiB"));
    known.phase = CENOTE_PHASE_FORWARD;
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT(keeps_quiet_of("Gradients of"));
    known.asks = 500 * MIB; /* it runs out of memory itself: no second call, and our words are the ones that stay */
    int calls = known.calls;
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT_EQ(known.calls, calls + 1);
    EXPECT(says("Tried to allocate 400.00 MiB."));
    DONE(cenote_on_moment(NULL, NULL));
    run_out(scene.pool, 400 * MIB, scene.stream[A]);
    EXPECT_EQ(known.calls, calls + 1);
    DONE(cenote_free(held));
    scene_close(&scene);
}

CASE(who_takes_the_memory)
{
    struct scene scene;
    open_scene(&scene, NULL);
    explain_now(scene.pool);
    EXPECT(says("is allocated by cenote, and"));
    DONE(cenote_pool_set_user(scene.pool, "PyTorch"));
    explain_now(scene.pool);
    EXPECT(says("Including non-PyTorch memory, this process has"));
    EXPECT(says("0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."));
    static const char *const wrong[] = {NULL, "", "two words", "of more than thirty-one letters", "a\nb", "caf\xc3\xa9"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_EQ(cenote_pool_set_user(scene.pool, i == 3 ? "of-more-than-thirty-one-letters-x" : wrong[i]), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_user(NULL, "PyTorch"), CENOTE_INVALID);
    scene_close(&scene);
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--hold"))
        return hold(strtoull(argv[2], NULL, 10), atoi(argv[3]), atoi(argv[4]));
    return test_run("api: explanations", argc > 1 ? argv[1] : "", NULL, scene_after);
}
