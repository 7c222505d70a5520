/*
 * callbacks.c: functions of the program that cenote calls, and that call cenote. Watch functions and clocks must not, the others may; none
 * makes it hang or recurse without end.
 */
#include "tests/death/misuse.h"

static struct scenery *scenery;
static cenote_group   *group;
static bool            awake;   /* the function has not done it yet */
static int             answer;  /* of what the function called */
static int             calls;   /* of the function */

static void keep_words(void)
{
    snprintf(scenery->words, sizeof scenery->words, "%s", cenote_message());
}

static void awaken(struct scenery *s)
{
    scenery = s;
    awake = true;
    calls = 0;
}

/* ------------------------------------------------------------------------------------------------------------------- must not call */

static void call_them_all(void)
{
    if (!awake)
        return;
    awake = false;
    answer = call_everything(scenery, group, CENOTE_INVALID);
    keep_words();
}

static void nosy_watch(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
    call_them_all();
}

static uint64_t nosy_clock(void *arg)
{
    (void)arg;
    call_them_all();
    return sim_now();
}

MISUSE(a_watch_function_that_calls_cenote, CENOTE_INVALID, "must not call cenote")
{
    group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_pool_watch(s->scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, nosy_watch, NULL));
    awaken(s);
    DONE(cenote_free(block_of(s, 20 * MIB)));
    EXPECT(!awake);
    DONE(cenote_pool_watch(s->scene.pool, 0, nosy_watch, NULL));
    DONE(cenote_group_destroy(group));
    return answer;
}

/* The same where a block is told of that has waited for another stream, and where memory goes. */
MISUSE(a_watch_function_that_calls_cenote_later, CENOTE_INVALID, "must not call cenote")
{
    group = group_of(s, CENOTE_GROUP_PRIVATE);
    char *block = block_of(s, 5 * MIB);
    DONE(cenote_use(block, s->scene.stream[B]));
    DONE(sim_launch_wait(s->scene.stream[B], MSEC));
    DONE(cenote_free(block));
    DONE(cenote_pool_watch(s->scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, nosy_watch, NULL));
    awaken(s);
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(!awake);
    awaken(s);
    DONE(cenote_free(block_of(s, 20 * MIB)));
    awaken(s);
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT(!awake);
    DONE(cenote_pool_watch(s->scene.pool, 0, nosy_watch, NULL));
    DONE(cenote_group_destroy(group));
    return answer;
}

MISUSE(a_clock_that_calls_cenote, CENOTE_INVALID, "must not call cenote")
{
    cenote_options options = scene_options();
    cenote_pool *pool;
    void *block;
    options.clock = nosy_clock;
    group = group_of(s, CENOTE_GROUP_PRIVATE);
    awaken(s);
    DONE(cenote_pool_create(0, &options, &pool));
    EXPECT(!awake);
    awaken(s);
    DONE(cenote_pool_step(pool));
    EXPECT(!awake);
    awaken(s);
    DONE(cenote_alloc(pool, 3 * MIB, s->scene.stream[A], &block)); /* with the turn */
    EXPECT(!awake);
    DONE(cenote_free(block));
    DONE(cenote_pool_destroy(pool));
    DONE(cenote_group_destroy(group));
    return answer;
}

/* ------------------------------------------------------------------------------------------------------------- memory of the program */

static void *take_from_itself(size_t bytes, cenote_stream stream, void *arg)
{
    void *block = NULL;
    calls++;
    answer = group_alloc(arg, bytes, 512, stream, &block);
    keep_words();
    return block;
}

static void give_nothing(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)memory, (void)bytes, (void)stream, (void)arg;
}

MISUSE(a_source_that_takes_from_its_own_group, CENOTE_INVALID, "allocates from its own group")
{
    void *block;
    cenote_source source = {take_from_itself, give_nothing, NULL};
    awaken(s);
    DONE(cenote_group_create(s->scene.pool, "own", 0, &source, &group));
    DONE(cenote_group_destroy(group));
    cenote_group *place = group;
    source.arg = place; /* the next group has the handle of the one before */
    DONE(cenote_group_create(s->scene.pool, "own", 0, &source, &group));
    EXPECT_EQ(group, place);
    EXPECT_EQ(group_alloc(group, MIB, 512, s->scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT(calls > 0);
    DONE(cenote_group_destroy(group));
    return answer;
}

/* What it may do: use the driver, and cenote beside. */
static void *take_and_call(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    void *block;
    cenote_pool *pool = scenery->scene.pool;
    (void)arg;
    calls++;
    DONE(cenote_alloc(pool, MIB, stream, &block));
    DONE(cenote_pool_trim(pool, 0, 0));
    DONE(cenote_free(block));
    DONE(cenote_pool_check(pool));
    DONE(cuMemAlloc(&at, bytes));
    return (void *)(uintptr_t)at;
}

static void give_and_call(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    void *block;
    cenote_pool *pool = scenery->scene.pool;
    (void)bytes, (void)arg;
    calls++;
    DONE(cuMemFree((CUdeviceptr)(uintptr_t)memory));
    DONE(cenote_alloc(pool, MIB, stream, &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
    answer = cenote_pool_destroy(pool);
}

ANSWER(a_source_that_calls_cenote, CENOTE_OK, NULL)
{
    void *block;
    awaken(s);
    DONE(cenote_group_create(s->scene.pool, "own", 0, &(cenote_source){take_and_call, give_nothing, s}, &group));
    DONE(group_alloc(group, 3 * MIB, 512, s->scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(calls, 1);
    return CENOTE_OK;
}

MISUSE(a_source_that_destroys_the_pool, CENOTE_BUSY, "when it has returned")
{
    void *block;
    awaken(s);
    DONE(cenote_group_create(s->scene.pool, "own", 0, &(cenote_source){take_and_call, give_and_call, s}, &group));
    DONE(group_alloc(group, 3 * MIB, 512, s->scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(calls, 2);
    return answer;
}

/* -------------------------------------------------------------------------------------------------------------- when memory runs out */

static int allocate_more(cenote_pool *pool, size_t bytes, void *arg)
{
    void *block;
    (void)arg;
    EXPECT(++calls < 100);
    answer = cenote_alloc(pool, bytes, scenery->scene.stream[C], &block);
    return 1;
}

/* The allocation inside does not ask the function again. */
ANSWER(a_shortage_function_that_runs_short, CENOTE_OUT_OF_MEMORY, " out of memory.")
{
    void *block;
    awaken(s);
    DONE(cenote_pool_on_shortage(s->scene.pool, allocate_more, NULL));
    int error = cenote_alloc(s->scene.pool, 63 * MIB, s->scene.stream[A], &block);
    EXPECT(calls > 0);
    EXPECT_EQ(answer, CENOTE_OUT_OF_MEMORY);
    DONE(cenote_pool_on_shortage(s->scene.pool, NULL, NULL));
    return error;
}

static int destroy_pool(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)bytes, (void)arg;
    calls++;
    answer = cenote_pool_destroy(pool);
    keep_words();
    return 0;
}

MISUSE(a_shortage_function_that_destroys_the_pool, CENOTE_BUSY, "when it has returned")
{
    void *block;
    cenote_pool *pool = pool_of(s);
    awaken(s);
    DONE(cenote_pool_on_shortage(pool, destroy_pool, NULL));
    EXPECT_EQ(cenote_alloc(pool, 63 * MIB, s->scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT(calls > 0);
    DONE(cenote_pool_destroy(pool));
    return answer;
}

static int destroy_other(cenote_pool *pool, size_t bytes, void *arg)
{
    (void)pool, (void)bytes;
    return !calls++ && !cenote_pool_destroy(arg);
}

/* Another pool may go: it holds memory that is needed. */
ANSWER(a_shortage_function_that_destroys_another_pool, CENOTE_OK, NULL)
{
    void *block;
    cenote_pool *pool = pool_of(s);
    awaken(s);
    DONE(cenote_alloc(pool, 40 * MIB, s->scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_on_shortage(s->scene.pool, destroy_other, pool));
    DONE(cenote_alloc(s->scene.pool, 40 * MIB, s->scene.stream[C], &block));
    DONE(cenote_free(block));
    DONE(cenote_pool_on_shortage(s->scene.pool, NULL, NULL));
    if (!calls)
        DONE(cenote_pool_destroy(pool)); /* what it held was taken from it without asking */
    return CENOTE_OK;
}

static void explain_more(cenote_pool *pool, cenote_moment *moment, void *arg)
{
    char text[4096];
    void *block;
    (void)moment;
    EXPECT(++calls < 100);
    EXPECT(cenote_pool_explain(pool, 0, text, sizeof text) > 0);
    EXPECT_EQ(cenote_alloc(pool, GIB, scenery->scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    answer = arg ? cenote_pool_destroy(pool) : CENOTE_OK;
    keep_words();
}

ANSWER(a_moment_function_that_calls_cenote, CENOTE_OUT_OF_MEMORY, " out of memory.")
{
    void *block;
    awaken(s);
    DONE(cenote_on_moment(explain_more, NULL));
    int error = cenote_alloc(s->scene.pool, GIB, s->scene.stream[A], &block);
    DONE(cenote_on_moment(NULL, NULL));
    EXPECT_EQ(calls, 1);
    return error;
}

MISUSE(a_moment_function_that_destroys_the_pool, CENOTE_BUSY, "when it has returned")
{
    void *block;
    cenote_pool *pool = pool_of(s);
    awaken(s);
    DONE(cenote_on_moment(explain_more, pool));
    EXPECT_EQ(cenote_alloc(pool, 63 * MIB, s->scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    DONE(cenote_on_moment(NULL, NULL));
    EXPECT_EQ(calls, 1);
    DONE(cenote_pool_destroy(pool));
    return answer;
}
