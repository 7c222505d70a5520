/* test_contexts.c: pools in contexts that the caller keeps: one that it has made itself, and the primary one. */
#include "tests/api/scene.h"

static struct sim_books books_now(void)
{
    struct sim_books books;
    sim_books(&books);
    return books;
}

/* A scene in a context of the program's own; the primary one is not made. */
static void open_beside(struct scene *scene)
{
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    memset(scene, 0, sizeof *scene);
    scene_is_open = true;
    sim_reset(&shape);
    DONE(cuInit(0));
    DONE(cuCtxCreate(&scene->context, NULL, 0, 0));
    for (int i = 0; i < SCENE_STREAMS; i++)
        DONE(cuStreamCreate(&scene->stream[i], CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create_in(scene->context, &options, &scene->pool));
    REQUIRE(scene->pool);
}

static void close_beside(struct scene *scene)
{
    scene_judge(scene);
    scene_destroy_pool(scene);
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cuCtxDestroy(scene->context));
    EXPECT_EQ(books_now().contexts, 0);
    EXPECT_EQ(books_now().violations, 0);
    scene_is_open = false;
}

CASE(a_pool_in_a_context_of_the_program)
{
    struct scene s;
    int active = 1;
    unsigned flags;
    open_beside(&s);
    EXPECT_EQ(cenote_pool_device(s.pool), 0);
    for (int i = 0; i < 20; i++) {
        struct held one = {0}, other = {0};
        REQUIRE(held_take(&one, s.pool, 9 * MIB, s.stream[A]) && held_take(&other, s.pool, 300 * KIB, s.stream[B]));
        held_expect(&one, s.stream[A]);
        DONE(cenote_use(other.at, s.stream[C]));
        held_expect(&other, s.stream[C]);
        DONE(cenote_free(one.at));
        DONE(cenote_free(other.at));
    }
    DONE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT(!active);
    EXPECT_EQ(books_now().contexts, 1); /* cenote retains nothing */
    close_beside(&s);
}

/* What is wrong is said of the pool's context: a stream of the primary one is no mistake elsewhere. */
static void expect_advice(void)
{
    EXPECT(strstr(cenote_message(), "cenote_pool_create_in was given") && !strstr(cenote_message(), "primary"));
}

/* A default stream is that of the current context, which has to be the pool's. */
CASE(default_streams)
{
    struct scene s;
    CUcontext primary, popped;
    void *block = NULL;
    open_beside(&s);
    DONE(cenote_alloc(s.pool, MIB, NULL, &block));
    DONE(cenote_free(block));
    DONE(cuDevicePrimaryCtxRetain(&primary, 0));
    DONE(cuCtxPushCurrent(primary));
    EXPECT_EQ(cenote_alloc(s.pool, MIB, NULL, &block), CENOTE_INVALID);
    expect_advice();
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&s);
}

/* Streams of the device's other contexts are none of the pool's. */
CASE(two_contexts_of_a_device)
{
    struct scene s;
    cenote_pool *other;
    CUcontext primary, popped;
    CUstream there;
    void *block = NULL, *far = NULL;
    open_beside(&s);
    DONE(cuDevicePrimaryCtxRetain(&primary, 0));
    DONE(cuCtxPushCurrent(primary));
    DONE(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    DONE(cenote_pool_create(0, NULL, &other));
    EXPECT_EQ(cenote_alloc(s.pool, MIB, there, &block), CENOTE_INVALID);
    expect_advice();
    EXPECT_EQ(cenote_alloc(other, MIB, s.stream[A], &block), CENOTE_INVALID);
    DONE(cenote_alloc(other, 3 * MIB, there, &far));
    DONE(cenote_alloc(s.pool, 3 * MIB, s.stream[A], &block));
    EXPECT_EQ(cenote_use(block, there), CENOTE_INVALID);
    expect_advice();
    DONE(cenote_free(block));
    DONE(cenote_free(far));
    DONE(cenote_pool_destroy(other));
    DONE(cuStreamDestroy(there));
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuDevicePrimaryCtxRelease(0));
    close_beside(&s);
}

/* The primary context that the caller keeps is not retained, until a pool needs it whose caller does not. */
CASE(the_primary_context)
{
    struct scene s;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_pool *other;
    void *block;
    scene_open_card(&s, &shape);
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cenote_pool_create_in(s.context, &options, &s.pool));
    DONE(cenote_alloc(s.pool, 3 * MIB, s.stream[A], &block));
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cenote_pool_create(0, &options, &other));
    EXPECT_EQ(books_now().contexts, 2);
    DONE(cenote_free(block));
    scene_judge(&s);
    scene_destroy_pool(&s);
    EXPECT_EQ(books_now().contexts, 2);
    DONE(cenote_pool_destroy(other));
    EXPECT_EQ(books_now().contexts, 1);
    DONE(cuDevicePrimaryCtxRelease(0));
    scene_is_open = false;
}

CASE(no_context)
{
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_pool *pool = NULL;
    CUcontext gone;
    sim_reset(&shape);
    DONE(cuInit(0));
    EXPECT_EQ(cenote_pool_create_in(NULL, NULL, &pool), CENOTE_INVALID);
    DONE(cuCtxCreate(&gone, NULL, 0, 0));
    DONE(cuCtxDestroy(gone));
    sim_set_quiet(true);
    EXPECT_EQ(cenote_pool_create_in(gone, NULL, &pool), CENOTE_INVALID);
    sim_set_quiet(false);
    EXPECT(!pool);
}

SUITE_MAIN("api: contexts")
